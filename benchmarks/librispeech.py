"""`make bench-librispeech`: utterances per second and core of Jasper's step and of its front end.

The competitor is the code path of NVIDIA's DeepLearningExamples (`benchmarks.nvidia_jasper`) with
the same parameters, sounds and texts, which a test proves equal in float64; both use dropout, and
both are in float32 on one thread. Utterances of a batch have different lengths, as in the paper's
run, whose batches are drawn at random. The model is a small Jasper of 128 to 384 channels.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile  # type: ignore[import-untyped]
import torch
from torch import Tensor

from analysis.performance import Measurement
from benchmarks.contest import BenchOptions, Findings, compete, of_matrix_products, speed
from benchmarks.nvidia_jasper import plain_features, plain_forward, plain_loss
from tasks.librispeech.batches import read_sound
from tasks.librispeech.features import RATE, SPEEDS, log_mel, speed_perturb
from tasks.librispeech.loss import ctc
from tasks.librispeech.model import Jasper, JasperOptions

UTTERANCES, SECONDS, SHORTEST = 8, 8.0, 4.0  # of a batch
LETTERS = 14  # per second
SIZES = JasperOptions(
    repeats=[1, 2, 2, 2, 1, 1],
    kernels=[11, 11, 13, 17, 19, 1],
    widths=[128, 128, 192, 256, 256, 384],
    dropouts=[0.2] * 6,
)
ROUNDS = {"step": 9, "front_end": 15, "files": 9}


def measure(options: BenchOptions) -> Findings:
    """The step, the front end, and what loading processes do."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    seconds = SHORTEST + (SECONDS - SHORTEST) * torch.rand(UTTERANCES, generator=generator)
    seconds[0] = SECONDS
    lengths = (seconds * RATE).long()
    sounds = make_sounds(lengths, generator)
    with tempfile.TemporaryDirectory() as folder:
        files = measure_files(sounds, lengths, Path(folder), options)
    sounds = sounds.to(options.device)
    found = measure_front_end(sounds, lengths, options)
    return Findings([*measure_step(sounds, lengths, options), *found, *files])


def make_sounds(lengths: Tensor, generator: torch.Generator) -> Tensor:
    """Tones and noise whose loudness varies, as that of speech does: (B, N), 0 beyond the ends."""
    time = torch.arange(int(lengths.max())) / RATE
    pitch = 100 + 150 * torch.rand(len(lengths), 1, generator=generator)
    voice = sum((2 * torch.pi * k * pitch * time).sin() / k for k in range(1, 12))
    noise = torch.randn(len(lengths), len(time), generator=generator)
    loudness = (2 * torch.pi * 3 * time).sin().clamp(min=0)
    sounds = (0.05 * voice + 0.005 * noise) * loudness + 0.001 * noise
    return sounds * (torch.arange(len(time)) < lengths[:, None])


def measure_step(sounds: Tensor, lengths: Tensor, options: BenchOptions) -> list[Measurement]:
    """Forward, CTC and backward, from features to gradients."""
    device = options.device
    features, frames = log_mel(sounds, lengths)
    frames = frames.to(device)
    target_lengths = (lengths * LETTERS / RATE).long()
    targets = torch.randint(0, 28, (len(lengths), int(target_lengths.max())))
    model = Jasper(SIZES).to(device)

    def ours() -> None:
        model.zero_grad()
        log_p, out_lengths = model(features, frames)
        loss = ctc(log_p, out_lengths.cpu(), targets, target_lengths).total
        loss.backward()  # type: ignore[no-untyped-call]

    def theirs() -> None:
        model.zero_grad()
        log_p, out_lengths = plain_forward(model, features, frames)
        loss = plain_loss(log_p, out_lengths, targets.to(device), target_lengths)
        loss.backward()  # type: ignore[no-untyped-call]

    rounds = options.rounds(ROUNDS["step"])
    (found,) = compete({"step": ours}, theirs, len(lengths), rounds, device=device)
    # Of the direct convolutions' products, of which ours need a part: it can pass 100 %.
    share = of_matrix_products(found, theirs, len(lengths), device).of_limit
    return [
        replace(
            found, limit="direct convolutions at a large matrix product's flop/s", of_limit=share
        )
    ]


def measure_front_end(sounds: Tensor, lengths: Tensor, options: BenchOptions) -> list[Measurement]:
    """From samples to features, with dither."""
    return compete(
        {"front_end": lambda: log_mel(sounds, lengths, dither=True)},
        lambda: plain_features(sounds, lengths),
        len(lengths),
        options.rounds(ROUNDS["front_end"]),
        device=options.device,
    )


def measure_files(
    sounds: Tensor, lengths: Tensor, folder: Path, options: BenchOptions
) -> list[Measurement]:
    """Decoding FLAC, and changing the speed."""
    paths = []
    for number, (sound, length) in enumerate(zip(sounds, lengths.tolist(), strict=True)):
        paths.append(str(folder / f"{number}.flac"))
        samples = (sound[:length].clamp(-1, 1).numpy() * 32767).astype(np.int16)
        soundfile.write(paths[-1], samples, RATE)
    rounds = options.rounds(ROUNDS["files"])
    changed = [speed for speed in SPEEDS if speed != 1]
    single = [sound[:length] for sound, length in zip(sounds, lengths.tolist(), strict=True)]
    return [
        speed("decoding", lambda: [read_sound(path) for path in paths], len(paths), rounds),
        speed(
            "speed_perturbation",
            lambda: [speed_perturb(sound, factor) for sound in single for factor in changed],
            len(changed) * len(single),
            rounds,
        ),
    ]
