"""From sound to what the model hears: 64 log-mel energies every 10 ms, and how they are varied.

All functions take batches on any device. What they make of an utterance does not depend on the
others in its batch: it is reflected at its own end, and normalised over its own length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torchaudio.transforms import Resample  # type: ignore[import-untyped]

RATE = 16000  # samples per second
N_FFT = 512
WINDOW = 320  # 20 ms, in the middle of the 512
HOP = 160  # 10 ms
SHORTEST = N_FFT // 2 + 1  # samples of an utterance: what the reflection at an end needs
MELS = 64
DITHER = 1e-5
PRE_EMPHASIS = 0.97
LOG_FLOOR = 1e-20
STD_FLOOR = 1e-5
ALIGNED = 16  # frames of a batch are a multiple of it, for tensor cores
SPEEDS = (0.9, 1.0, 1.1)
STEP_16_BIT = 2.0**-15  # of 16-bit samples, whose full scale is 1
WHOLE = 4096  # samples; for resampling on the CPU, lengths are rounded up to a multiple of it

# Slaney's scale: linear up to 1 kHz, where it is at 15, and 27 steps for each factor of 6.4 above.
LINEAR = 200 / 3  # Hz per mel
KNEE_HZ = 1000.0
KNEE = KNEE_HZ / LINEAR
LOG_STEP = math.log(6.4) / 27


def log_mel(waveform: Tensor, lengths: Tensor, dither: bool = False) -> tuple[Tensor, Tensor]:
    """Sound (B, N) of the given lengths to features (B, 64, T) and their lengths ⌈N / 160⌉.

    Of each feature the mean over the utterance is 0 and the standard deviation 1; what lies beyond
    the utterance is 0. `dither`, for training, adds noise in the batch's shape that the default
    generator of the sound's device draws.
    """
    if lengths.device.type == "cpu":  # elsewhere the question would wait for the device
        _check(waveform, lengths)
    lengths = lengths.to(waveform.device)
    with torch.no_grad(), _full_precision(waveform.device.type):
        if dither:
            waveform = waveform.add(torch.randn_like(waveform), alpha=DITHER)
        emphasised = waveform.clone()
        emphasised[:, 1:].sub_(waveform[:, :-1], alpha=PRE_EMPHASIS)
        window, filters = _constants(waveform.dtype, waveform.device)
        spectrum = torch.stft(
            reflect(emphasised, lengths, N_FFT // 2),
            N_FFT,
            HOP,
            WINDOW,
            window,
            center=False,
            return_complex=True,
        )
        # Five times as fast as a sum over the last axis of `view_as_real`, and the same bits.
        power = spectrum.real.square().add_(spectrum.imag.square())
        frames = -(-waveform.shape[1] // HOP)
        energies = torch.log(filters @ power[..., :frames] + LOG_FLOOR)
        lengths = frame_counts(lengths)
        return F.pad(normalise(energies, lengths), (0, -frames % ALIGNED)), lengths


def frame_counts(samples: Tensor) -> Tensor:
    """How many frames utterances of so many samples have: ⌈N / 160⌉."""
    return (samples + HOP - 1).div(HOP, rounding_mode="floor")


def reflect(x: Tensor, lengths: Tensor, width: int) -> Tensor:
    """(B, N) with `width` more at both ends; x[-i] = x[i] and x[L - 1 + i] = x[L - 1 - i]."""
    out = F.pad(x, (width, width))
    out[:, :width] = x[:, 1 : width + 1].flip(1)
    steps = torch.arange(width, device=x.device)
    ends = lengths[:, None]
    out.scatter_(1, ends + width + steps, x.gather(1, ends - 2 - steps))
    return out


def normalise(x: Tensor, lengths: Tensor) -> Tensor:
    """(B, features, T) to mean 0 and deviation 1 over each utterance, and to 0 beyond it."""
    padding = (torch.arange(x.shape[-1], device=x.device) >= lengths[:, None])[:, None]
    count = lengths[:, None, None].to(x.dtype)
    mean = x.masked_fill(padding, 0).sum(-1, keepdim=True) / count
    centred = (x - mean).masked_fill(padding, 0)
    std = (centred.square().sum(-1, keepdim=True) / (count - 1)).sqrt()
    return centred / (std + STD_FLOOR)


def mel_filters() -> np.ndarray:
    """Slaney's triangles of equal area from 0 to 8000 Hz: float64 (64, 257)."""
    corners = _hertz(np.linspace(0, _mel(RATE / 2), MELS + 2))
    left, peak, right = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    frequencies = np.linspace(0, RATE / 2, N_FFT // 2 + 1)
    rising = (frequencies - left) / (peak - left)
    falling = (right - frequencies) / (right - peak)
    filters: np.ndarray = np.maximum(0, np.minimum(rising, falling)) * 2 / (right - left)
    return filters


def play(sound: Tensor, recorded: Sequence[int], speeds: Sequence[float]) -> Tensor:
    """Recordings (B, N) as they are heard: float32, each at its speed, padded with zeros.

    `recorded` are their samples. Those of 16 bits become floating-point numbers without rounding.
    """
    sound = as_float(sound)
    if all(speed == 1.0 for speed in speeds):
        return sound
    with torch.no_grad(), _full_precision(sound.device.type):
        parts = zip(sound, recorded, speeds, strict=True)
        return pad_sequence(
            [speed_perturb(one[:samples], speed) for one, samples, speed in parts], batch_first=True
        )


def as_float(sound: Tensor) -> Tensor:
    """16-bit samples as float32 of full scale 1, exactly; all others as they are."""
    return sound.float() * STEP_16_BIT if sound.dtype == torch.int16 else sound


def played_samples(recorded: int, speed: float) -> int:
    """How many samples an utterance of so many has at a speed: ⌈N / speed⌉."""
    return -(-10 * recorded // round(10 * speed))


def speed_perturb(waveform: Tensor, factor: float) -> Tensor:
    """Plays (…, N) that many times as fast, and as high: (…, ⌈N / factor⌉)."""
    if factor not in SPEEDS:
        raise ValueError(f"speed_perturb: factor must be one of {SPEEDS}, not {factor!r}")
    if factor == 1.0:
        return waveform
    samples = waveform.shape[-1]
    if waveform.device.type == "cpu":  # oneDNN compiles a convolution anew for every length
        waveform = F.pad(waveform, (0, -samples % WHOLE))
    out: Tensor = _resampler(factor, waveform.dtype, waveform.device)(waveform)
    return out[..., : played_samples(samples, factor)]


def cut_out(
    features: Tensor,
    lengths: Tensor,
    places: Tensor,
    *,
    bands: int = 2,
    band_width: int = 6,
    spans: int = 2,
    span_width: int = 6,
    anywhere: bool = False,
) -> Tensor:
    """Sets `bands` runs of features and `spans` runs of frames of each utterance to 0.

    The runs have a fixed width, may overlap, and lie inside the features (B, F, T) and the
    utterance's own length; an utterance shorter than the width is cut out as a whole. Their starts
    are `places` (B, bands + spans), uniform draws from [0, 1).

    With `anywhere`, as in NVIDIA's first Jasper (model.py, SpecAugment), spans lie in all of the
    batch, its padding included, and the last possible start of a run is never drawn.
    """
    batch, bins, frames = features.shape
    if places.shape != (batch, bands + spans):
        raise ValueError(
            f"cut_out: places must have the shape {(batch, bands + spans)}, a draw for each of"
            f" {bands} bands and {spans} spans, not {tuple(places.shape)}"
        )
    places, lengths = places.to(features.device), lengths.to(features.device)
    everywhere = torch.full_like(lengths, bins - anywhere)
    if anywhere:
        lengths = torch.full_like(lengths, frames - 1)
    in_band = _runs(places[:, :bands], everywhere, band_width, bins)
    in_span = _runs(places[:, bands:], lengths, span_width, frames)
    return features.masked_fill(in_band[:, :, None] | in_span[:, None, :], 0)


def _runs(places: Tensor, lengths: Tensor, width: int, total: int) -> Tensor:
    """Where the runs lie: (B, total). Their starts are uniform over 0 … length - width."""
    starts = (places * (lengths - width + 1).clamp(min=1)[:, None]).floor()[..., None]
    position = torch.arange(total, device=places.device)
    return ((position >= starts) & (position < starts + width)).any(1)


@contextmanager
def _full_precision(device: str) -> Iterator[None]:
    """No autocast (some devices, as `meta`, have none to switch off), and no TF32.

    Nor cuDNN: every length of an utterance would be a new shape, for which it plans anew.
    """
    matmul, has_autocast = torch.backends.cuda.matmul, torch.amp.is_autocast_available(device)
    with torch.autocast(device, enabled=False) if has_autocast else nullcontext():
        if device != "cuda":
            yield
            return
        tf32, matmul.allow_tf32 = matmul.allow_tf32, False
        try:
            with torch.backends.cudnn.flags(enabled=False):
                yield
        finally:
            matmul.allow_tf32 = tf32


def _check(waveform: Tensor, lengths: Tensor) -> None:
    wrong = [n for n in lengths.tolist() if not SHORTEST <= n <= waveform.shape[1]]
    if wrong:
        raise ValueError(
            f"log_mel: lengths must be from {SHORTEST}, what the reflection at an end needs, to"
            f" {waveform.shape[1]}, what the batch has, not {wrong[0]}"
        )


@lru_cache(maxsize=16)
def _constants(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The symmetric Hann window (320,) and the mel filters (64, 257), computed in float64."""
    window = torch.hann_window(WINDOW, periodic=False, dtype=torch.float64)
    filters = torch.from_numpy(mel_filters())
    return window.to(device, dtype), filters.to(device, dtype)


@lru_cache(maxsize=16)
def _resampler(factor: float, dtype: torch.dtype, device: torch.device) -> Resample:
    """Of `factor` times the samples' rate to that rate; the constants are resampy's kaiser_best."""
    resample = Resample(
        round(10 * factor),
        10,
        resampling_method="sinc_interp_kaiser",
        lowpass_filter_width=64,
        rolloff=0.9475937167399596,
        beta=14.769656459379492,
        dtype=torch.float64,
    )
    return resample.to(device, dtype)


def _mel(hertz: float) -> float:
    """Slaney's scale above its knee."""
    return KNEE + math.log(hertz / KNEE_HZ) / LOG_STEP


def _hertz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < KNEE, mel * LINEAR, KNEE_HZ * np.exp(LOG_STEP * (mel - KNEE)))
