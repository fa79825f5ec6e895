"""Batches of utterances: whatever the batch, an utterance sounds the same."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile  # type: ignore[import-untyped]
import torch
from torch.nn.utils.rnn import pad_sequence

from tasks.base import DataProblem
from tasks.librispeech import batches
from tasks.librispeech.alphabet import decode
from tasks.librispeech.batches import UtteranceBatches, Utterances, silence
from tasks.librispeech.features import SPEEDS, cut_out, log_mel, speed_perturb
from tasks.librispeech.manifest import Manifest
from tasks.loading import Loaded, Unreadable, load_batches
from tasks.streams import Item
from tests.tasks.librispeech.test_manifest import write_chapter

SAMPLES = [5000, 4000, 700, 6001, 300, 200]
TEXTS = ["ONE", "TWO THREE", "FOUR", "IT'S FIVE", "SIX", "TOO SHORT"]


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    names = [f"1-2-{i:04}" for i in range(len(SAMPLES))]
    utterances = dict(zip(names, zip(TEXTS, SAMPLES, strict=True), strict=True))
    write_chapter(tmp_path / "some" / "1" / "2", utterances)
    return Manifest(tmp_path, ["some"])


def load(source: UtteranceBatches, keys: list[Item] | list[int]) -> Loaded:
    loaded = source.__getitems__(keys)
    assert isinstance(loaded, Loaded)
    return loaded


def test_evaluation_hears_what_was_spoken(manifest: Manifest):
    tensors, units, unreadable = load(
        UtteranceBatches(manifest, 0, perturb_speed=True, cuts=4), [3, 0, 2]
    )
    assert (units, unreadable) == (3, {})
    assert tensors["sound"].dtype == torch.int16
    assert tensors["sound"].shape == (3, 6001)
    assert tensors["samples"].tolist() == [6001, 5000, 700]
    assert tensors["index"].tolist() == [3, 0, 2]
    assert tensors["target_lengths"].tolist() == [9, 3, 4]
    assert set(tensors) == {"sound", "samples", "targets", "target_lengths", "index"}
    assert all(t.dtype == torch.int64 for name, t in tensors.items() if name != "sound")
    for row, key in enumerate([3, 0, 2]):
        stored, _ = soundfile.read(manifest.path(key), dtype="int16")
        sound = tensors["sound"][row]
        assert np.array_equal(sound[: len(stored)].numpy(), stored)
        assert (sound[len(stored) :] == 0).all()
        length = int(tensors["target_lengths"][row])
        assert decode(tensors["targets"][row, :length].tolist()) == manifest.text(key)
        assert (tensors["targets"][row, length:] == 0).all()


@pytest.mark.parametrize("training", [True, False])
def test_the_batch_does_not_matter(manifest: Manifest, training: bool):
    source = UtteranceBatches(manifest, 5, perturb_speed=True, cuts=3)
    items, indices = [Item(7, i) for i in (0, 1, 2, 3)], [0, 1, 2, 3]
    together = load(source, items if training else indices).tensors
    for row in range(4):
        alone = load(source, items[row : row + 1] if training else indices[row : row + 1]).tensors
        assert alone.keys() == together.keys()
        for name, tensor in alone.items():
            same = together[name][row]
            if tensor.dim() > 1:
                beyond = same[tensor.shape[1] :]
                assert (beyond == 0).all()
                same = same[: tensor.shape[1]]
            assert torch.equal(tensor[0], same), name


def test_augmentation_is_a_function_of_seed_epoch_and_index(manifest: Manifest):
    def speeds_and_cuts(seed: int, epoch: int) -> list[tuple[int, tuple[float, ...]]]:
        source = UtteranceBatches(manifest, seed, perturb_speed=True, cuts=4)
        tensors = load(source, [Item(epoch, i) for i in range(4)]).tensors
        assert tensors["cuts"].shape == (4, 4)
        assert tensors["cuts"].dtype == torch.float64
        assert ((tensors["cuts"] >= 0) & (tensors["cuts"] < 1)).all()
        samples = tensors["samples"].tolist()
        return list(zip(samples, map(tuple, tensors["cuts"].tolist()), strict=True))

    draws = {(s, e): speeds_and_cuts(s, e) for s in range(3) for e in range(6)}
    assert draws[2, 5] == speeds_and_cuts(2, 5)
    assert len({cut for draw in draws.values() for _, cut in draw}) == 3 * 6 * 4
    for i in range(4):
        lengths = {draw[i][0] for draw in draws.values()}
        assert lengths == {math.ceil(SAMPLES[i] / speed) for speed in SPEEDS}


def test_speeds_are_equally_likely(manifest: Manifest):
    source = UtteranceBatches(manifest, 0, perturb_speed=True)
    drawn = [source.speed(Item(epoch, i)) for epoch in range(500) for i in range(6)]
    for speed in SPEEDS:
        assert abs(drawn.count(speed) - 1000) < 4 * math.sqrt(3000 * 2 / 9)


def test_without_augmentation_training_hears_what_evaluation_hears(manifest: Manifest):
    source = UtteranceBatches(manifest, 0)
    tensors = load(source, [Item(9, 1), Item(9, 3)]).tensors
    assert tensors.pop("cuts").shape == (2, 0)
    plain = load(source, [1, 3]).tensors
    assert all(torch.equal(tensors[name], plain[name]) for name in tensors | plain)


def test_features_take_a_batch(manifest: Manifest):
    source = UtteranceBatches(manifest, 0, perturb_speed=True, cuts=4)
    tensors = load(source, [Item(0, i) for i in range(5)]).tensors
    sound = Utterances(tensors, 5).played()
    features, lengths = log_mel(sound, tensors["samples"], dither=True)
    heard = cut_out(features, lengths, tensors["cuts"])
    assert heard.isfinite().all()
    assert not torch.equal(heard, features)


@pytest.mark.parametrize("workers", [0, 1])
def test_integers_on_the_way_sound_as_floats_would(manifest: Manifest, workers: int):
    """Bit for bit what reading and resampling in float32, an utterance at a time, would give."""
    source = UtteranceBatches(manifest, 0, perturb_speed=True)
    items = [Item(epoch, i) for epoch in range(3) for i in range(5)]
    assert {source.speed(item) for item in items} == set(SPEEDS)
    (batch,) = load_batches(source, [items], workers, Unreadable(0, 6, ""))
    assert batch.tensors["sound"].dtype == torch.int16
    read = [soundfile.read(manifest.path(item.index), dtype="float32")[0] for item in items]
    wanted = [
        speed_perturb(torch.from_numpy(sound), source.speed(item))
        for sound, item in zip(read, items, strict=True)
    ]
    heard = Utterances(batch.tensors, batch.units).played()
    assert heard.dtype == torch.float32
    assert torch.equal(heard, pad_sequence(wanted, batch_first=True))
    assert batch.tensors["samples"].tolist() == [len(sound) for sound in wanted]


@pytest.mark.parametrize("subtype", ["PCM_24", "FLOAT"])
def test_samples_of_more_bits_stay_floats(tmp_path: Path, subtype: str):
    chapter = tmp_path / "some" / "1" / "2"
    write_chapter(chapter, {"1-2-0000": ("ONE", 300), "1-2-0001": ("TWO", 400)})
    (chapter / "1-2-0001.flac").unlink()
    fine = np.random.default_rng(0).integers(-(2**23), 2**23, 400, dtype=np.int32)
    exact = (fine / 2**23).astype(np.float32)
    given = fine << 8 if subtype == "PCM_24" else exact
    soundfile.write(chapter / "1-2-0001.wav", given, 16000, subtype)
    tensors = load(UtteranceBatches(Manifest(tmp_path, ["some"]), 0), [0, 1]).tensors
    assert tensors["sound"].dtype == torch.float32
    heard = Utterances(tensors, 2).played().numpy()
    coarse = soundfile.read(chapter / "1-2-0000.flac", dtype="int16")[0]
    assert np.array_equal(heard[0, :300] * 2**15, coarse)
    assert np.array_equal(heard[1], exact)


def test_silence_is_a_batch_of_one_length():
    batch = silence(4, 12.0, SPEEDS, 0)
    assert batch.tensors["samples"].tolist() == [192_000] * 4
    assert batch.played().shape == (4, 192_000)
    assert silence(2, 1.5, (), 0).played().shape == (2, 24_000)


@pytest.mark.parametrize(("limit", "kept"), [(10_000, [0]), (0, []), (1 << 26, [0, 1, 3])])
def test_sounds_are_decoded_once_as_far_as_they_fit(
    manifest: Manifest, monkeypatch: pytest.MonkeyPatch, limit: int, kept: list[int]
):
    read: list[int] = []
    whole = batches.read_sound

    def read_sound(path: str) -> np.ndarray:
        read.append([manifest.path(i) for i in range(len(SAMPLES))].index(path))
        return whole(path)

    monkeypatch.setattr(batches, "read_sound", read_sound)
    monkeypatch.setattr(batches, "KEPT_BYTES", limit)
    source = UtteranceBatches(manifest, 0, perturb_speed=True)
    first = load(source, [Item(0, i) for i in (0, 1, 3)]).tensors["sound"].clone()
    again = load(source, [Item(0, i) for i in (0, 1, 3)]).tensors["sound"]
    assert torch.equal(first, again)
    assert read == [0, 1, 3, *(i for i in (0, 1, 3) if i not in kept)]


@pytest.mark.parametrize("kept", [0.6, 0.99])
def test_a_truncated_file_is_named_and_left_out(manifest: Manifest, kept: float):
    file = Path(manifest.path(1))
    file.write_bytes(file.read_bytes()[: int(kept * file.stat().st_size)])
    source = UtteranceBatches(manifest, 0, cuts=2)
    tensors, units, unreadable = load(source, [0, 1, 3])
    assert units == 3
    assert list(unreadable) == [str(file)]
    assert unreadable[str(file)]
    assert tensors["index"].tolist() == [0, 3]
    assert (tensors["lost_words"].item(), tensors["lost_characters"].item()) == (2, 9)
    tensors, units, unreadable = load(source, [Item(0, 0), Item(0, 1)])
    assert (units, list(unreadable)) == (2, [str(file)])
    assert {len(tensor) for tensor in tensors.values()} == {1}
    problem = source.__getitems__([1])
    assert isinstance(problem, DataProblem)
    assert str(problem).startswith(f"{file}: cannot be read, as all sounds of its batch: ")


def test_other_files_than_the_manifests_are_left_out(manifest: Manifest):
    soundfile.write(manifest.path(0), np.zeros(5000), 8000)
    Path(manifest.path(1)).unlink()
    Path(manifest.path(2)).write_bytes(b"no sound")
    tensors, _, unreadable = load(UtteranceBatches(manifest, 0), [0, 1, 2, 3, 5])
    assert list(unreadable) == [manifest.path(i) for i in (0, 1, 2, 5)]
    reasons = list(unreadable.values())
    assert reasons[0] == "8,000 samples per second in 1 channels"
    assert reasons[3] == "too short: 200 samples, must be 257 at least"
    assert not any(str(Path(manifest.path(0)).parent) in reason for reason in reasons)
    assert tensors["lost_words"].item() == 6


def test_what_the_manifest_could_not_read_is_counted(manifest: Manifest, tmp_path: Path):
    Path(manifest.path(1)).write_bytes(b"no sound")
    anew = Manifest(tmp_path, ["some"])
    assert list(anew.unreadable) == [manifest.path(1)]
    loaded = load(UtteranceBatches(anew, 0), [0, 1])
    assert loaded.tensors["lost_characters"].item() == 9


@pytest.mark.parametrize("workers", [0, 1])
def test_other_processes_make_the_same(manifest: Manifest, workers: int):
    source = UtteranceBatches(manifest, 3, perturb_speed=True, cuts=4)
    keys = [[Item(0, 0), Item(0, 3)], [Item(1, 2)]]
    batches = list(load_batches(source, keys, workers, Unreadable(0, 6, "")))
    for batch, some in zip(batches, keys, strict=True):
        expected = load(source, some)
        assert batch.units == expected.units
        assert batch.tensors.keys() == expected.tensors.keys()
        for name, tensor in batch.tensors.items():
            assert torch.equal(tensor, expected.tensors[name])


def test_real_speech():
    root = Path(os.environ.get("DATA_ROOT", "/nowhere")) / "an4" / "LibriSpeech"
    if not root.is_dir():
        pytest.skip("needs $DATA_ROOT/an4/LibriSpeech/dev-clean")
    manifest = Manifest(root, ["dev-clean"])
    tensors, _, unreadable = load(UtteranceBatches(manifest, 0), list(range(100)))
    assert unreadable == {}
    assert tensors["samples"].tolist() == manifest.samples.tolist()
    features, _ = log_mel(Utterances(tensors, 100).played(), tensors["samples"])
    assert features.isfinite().all()
