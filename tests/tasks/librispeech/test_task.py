"""LibriSpeech's streams, losses and error rates."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
import torch

from tasks.base import Batch, Context, DataProblem, Shard
from tasks.catalog import task_class
from tasks.librispeech.alphabet import greedy
from tasks.librispeech.batches import Utterances
from tasks.librispeech.features import RATE, log_mel
from tasks.librispeech.made_up import make_made_up
from tasks.librispeech.model import JasperOptions
from tasks.librispeech.task import LibriSpeech, LibriSpeechDataOptions
from tasks.loading import Loaded
from tasks.seeding import permutation
from tasks.streams import Item, padding_waste
from tests.tasks.contract import assert_task_contract, float64_model, take

SMALL = JasperOptions(
    repeats=[1, 1, 1, 1], kernels=[5, 5, 5, 1], widths=[6, 6, 8, 8], dropouts=[0.1] * 4
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    make_made_up(root / "speech")
    return root


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def make(root: Path, data: dict[str, Any] | None = None, **context: int) -> LibriSpeech:
    options = LibriSpeechDataOptions("speech", "speech", ["train-clean-100"], bands=2, spans=1)
    fields: dict[str, Any] = {
        "seed": 0,
        "micro": 5,
        "micro_batches": 4,
        "eval_batch": 7,
        "data_workers": 0,
    } | context
    return LibriSpeech(SMALL, replace(options, **data or {}), Context(data_root=root, **fields))


def halves(batch: Batch) -> list[Batch]:
    rows = len(batch.tensors["sound"])
    return [
        replace(batch, tensors={name: tensor[part] for name, tensor in batch.tensors.items()})
        for part in (slice(0, 2), slice(2, rows))
    ]


def utterances(batch: Batch) -> list[bytes]:
    return [str(index).encode() for index in batch.tensors["index"].tolist()]


def test_contract(root: Path):
    assert task_class("librispeech") is LibriSpeech
    assert_task_contract(lambda **context: make(root, **context), halves, utterances)


def test_error_rates_are_jiwers(root: Path):
    task = make(root)
    model = float64_model(task)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    said, heard = list[str](), list[str]()
    totals: dict[str, float] = {}
    for batch in task.eval_batches("test-other", Shard()):
        with torch.no_grad():
            counts, _ = task.count(model, batch, None)
            assert isinstance(batch, Utterances)
            features = log_mel(batch.played().double(), batch.tensors["samples"])
            heard += greedy(*model(*features))
        said += [task._held_out("test-other").text(i) for i in batch.tensors["index"].tolist()]
        totals = {name: totals.get(name, 0.0) + value for name, value in counts.items()}
    metrics = task.summarize("test-other", totals)
    assert any(heard)
    assert metrics["wer"] == pytest.approx(100 * jiwer.wer(said, heard))
    assert metrics["cer"] == pytest.approx(100 * jiwer.cer(said, heard))


def test_only_training_has_noise_masks_and_speeds(root: Path):
    """The loss of a batch in evaluation mode is one number; dither and dropout change it."""
    task = make(root)
    model = float64_model(task)
    (batch,) = take(task.train_stream(Shard(), 0), 1)
    quiet = [task.loss(model, batch, None).total.item() for _ in range(2)]
    assert quiet[0] == quiet[1]
    unmasked = make(root, {"bands": 0, "spans": 0}).loss(model, batch, None).total.item()
    assert unmasked != quiet[0]
    model.train()
    torch.manual_seed(0)
    noisy = [task.loss(model, batch, None).total.item() for _ in range(2)]
    assert noisy[0] != noisy[1]
    assert "cuts" not in next(task.eval_batches("dev-clean", Shard())).tensors


def test_what_has_no_alignment_is_counted_and_not_nan(root: Path):
    task = make(root)
    model = float64_model(task)
    (batch,) = take(task.train_stream(Shard(), 0), 1)
    rows = len(batch.tensors["targets"])
    batch.tensors["targets"] = torch.ones(rows, 500, dtype=torch.int64)
    batch.tensors["target_lengths"][0] = 500
    out = task.loss(model, batch, None)
    assert out.total.isfinite()
    assert out.weight == rows
    assert task.meters(1.0, 1)["train/no_alignment"] == 1


def test_unreadable_sounds_of_a_test_set_are_wrong_words(root: Path, tmp_path: Path):
    shutil.copytree(root / "speech", tmp_path / "speech")
    whole = make(root)
    model = float64_model(whole)
    broken = sorted((tmp_path / "speech" / "dev-clean").rglob("*.flac"))[0]
    broken.write_bytes(broken.read_bytes()[:300])
    task = make(tmp_path, {"max_unreadable": 0.5}, eval_batch=64)
    (batch,) = task.eval_batches("dev-clean", Shard())
    with torch.no_grad():
        counts, _ = task.count(model, batch, None)
    manifest = whole._held_out("dev-clean")
    words = sum(len(manifest.text(i).split()) for i in range(len(manifest)))
    assert counts["words"] == words
    assert counts["utterances"] == len(manifest) - 1
    strict = make(tmp_path, {"max_unreadable": 0.0}, eval_batch=64)
    with pytest.raises(DataProblem, match=f"{broken.name}: cannot be read"):
        list(strict.eval_batches("dev-clean", Shard()))


def test_lengths_and_meters(root: Path):
    task = make(root)
    batches = take(task.train_stream(Shard(), 0), 4)
    assert "hours" in task.about_data()
    model = float64_model(task)
    assert task.meters(1.0, 1) == {}
    seconds = 0.0
    for batch in batches:
        assert isinstance(batch, Utterances)
        assert batch.seconds == batch.tensors["samples"].sum().item() / RATE
        task.loss(model, batch, None)
        seconds += batch.seconds
    found = task.meters(2.0, 3)
    assert found["speed/audio_s_per_s"] == pytest.approx(1.5 * seconds)
    assert 0 < found["speed/front_end_share"] < 1
    assert 0 <= found["speed/padding_share"] < 0.3
    none = make(root, {"longest_s": 0.2})
    with pytest.raises(DataProblem, match=r"no utterance in train-clean-100 has between 0\.1 and"):
        assert none.epoch_units


def test_an_epochs_last_step_is_dropped_or_filled(root: Path):
    """120 utterances in steps of 7 × 5: three whole ones and a rest of 15."""
    dropped, filled = (make(root, {"fill_last_step": f}, micro_batches=7) for f in (False, True))
    assert (dropped.steps_per_epoch, filled.steps_per_epoch) == (3, 4)
    micro_batches = filled._slots(2)
    assert len(micro_batches) == 4 * 7
    assert micro_batches[24:] == micro_batches[:4]  # of 24 micro-batches the first ones again
    assert len({i for micro_batch in micro_batches[:24] for i in micro_batch}) == 120
    assert make(root, {"fill_last_step": True}, micro_batches=50).steps_per_epoch == 1
    take(filled.train_stream(Shard(), 3), 8)
    with pytest.raises(DataProblem, match="fewer than a micro-batch has"):
        make(root, micro=500).prepare_data()


def test_random_batches_take_no_notice_of_lengths(root: Path):
    """The reference's: an epoch's order, cut into micro-batches."""
    random, similar = (make(root, {"batching": b}) for b in ("random", "similar"))
    for epoch in (0, 1):
        order = permutation(120, "order", 0, epoch).tolist()
        assert [i for micro_batch in random._slots(epoch) for i in micro_batch] == order
        grouped = [i for micro_batch in similar._slots(epoch) for i in micro_batch]
        assert grouped != order
        assert sorted(grouped) == sorted(order)
    wastes = [padding_waste(task._lengths(0), task._slots(0)) for task in (random, similar)]
    assert wastes[0] > wastes[1] + 0.03
    cost = (1 - wastes[1]) / (1 - wastes[0])
    assert f"padding {100 * wastes[0]:.1f} % in random batches: {cost:.2f} times" in (
        random.about_data()
    )
    assert similar.about_data().endswith(f"padding {100 * wastes[1]:.1f} %")


def test_padding_takes_part_in_batch_norm(root: Path):
    """So what an utterance is batched with changes how the model learns from it."""
    task = make(root, {"bands": 0, "spans": 0})
    manifest = task._train
    order = np.argsort(manifest.samples)
    means = []
    for other in (order[0], order[-1]):
        batch = task._training.__getitems__([Item(0, int(order[0])), Item(0, int(other))])
        assert isinstance(batch, Loaded)
        model = float64_model(task).train()
        sound = Utterances(batch.tensors, 2).played()
        model(*log_mel(sound[:1].double(), batch.tensors["samples"][:1]))
        means.append(dict(model.named_buffers()))
    name = next(name for name in means[0] if name.endswith("running_mean"))
    assert not torch.allclose(means[0][name], means[1][name], rtol=1e-3)


def test_lengths_may_be_filtered_after_the_change_of_speed(root: Path):
    """As OpenSeq2Seq: what is too long at this epoch's speed is left out, and others fill it up."""
    lengths = make(root)._train.samples / RATE
    for share, recorded in ((0.95, False), (1.05, True)):  # 0.95 fits if faster, 1.05 not if slower
        longest = share * float(np.median(lengths))
        task = make(root, {"filter_by": "played", "longest_s": longest})
        task.prepare_data()
        assert task.epoch_units == 120  # counted before
        kept = make(root, {"longest_s": longest})._kept
        for epoch in (0, 1):
            micro_batches = task._slots(epoch)
            assert len(micro_batches) == 24
            used = {i for micro_batch in micro_batches for i in micro_batch}
            played = lengths / task._training.speeds(epoch)
            assert max(played[i] for i in used) <= longest
            assert (set(kept) - used if recorded else used - set(kept)) != set()
    with pytest.raises(DataProblem, match="0 utterances are fewer than a micro-batch has"):
        make(root, {"filter_by": "played", "longest_s": 0.2}).prepare_data()


def test_validation_on_utterances_that_are_never_trained_on(root: Path):
    whole = make(root)
    every = {"train_every": 2, "validate_every": 3}
    for filter_by in ("recorded", "played"):
        task = make(root, every | {"filter_by": filter_by})
        task.prepare_data()
        count = len(whole._train)
        left = [i for i in range(count) if i % 3]
        trained = left[: len(left) // 2 * 2 : 2]
        assert task.epoch_units == len(trained)
        batches = take(task.train_stream(Shard(), 0), task.steps_per_epoch * 2)
        assert {i for batch in batches for i in batch.tensors["index"].tolist()} <= {*trained}
        validated = [*task.eval_batches("dev-clean", Shard())]
        indices = [i for batch in validated for i in batch.tensors["index"].tolist()]
        assert sorted(indices) == [*range(0, count, 3)]
        tested = [task.eval_batches("test-clean", Shard()) for task in (task, whole)]
        assert [sum(b.units for b in batches) for batches in tested] == [
            len(whole._held_out("test-clean"))
        ] * 2
    for name, value in (("train_every", 0), ("validate_every", 1)):
        with pytest.raises(DataProblem, match=f"{name}: must be at least .* not {value}"):
            make(root, {name: value}).prepare_data()


@pytest.mark.parametrize("name", ["batching", "filter_by", "masks_over"])
def test_choices_that_do_not_exist(root: Path, name: str):
    with pytest.raises(DataProblem, match=rf"data\.{name}: must be one of .*, not 'x'"):
        make(root, {name: "x"}).prepare_data()


def test_a_share_of_unreadable_files_above_one_is_refused(root: Path):
    with pytest.raises(DataProblem, match=r"data\.max_unreadable: must be between 0 and 1"):
        make(root, {"max_unreadable": 2.0}).prepare_data()


def test_sets_with_fewer_parts(root: Path):
    task = make(root, {"held_out": ["dev-clean", "test-clean"]})
    task.prepare_data()
    assert task.final_splits == ("test-clean",)
    with pytest.raises(DataProblem, match=r"data\.held_out: must be dev-clean and others of"):
        make(root, {"held_out": ["test-clean"]}).prepare_data()
    with pytest.raises(DataProblem, match="there must be 281,241"):
        make(root, {"train_utterances": 281241}).prepare_data()


@pytest.mark.skipif("DATA_ROOT" not in os.environ, reason="DATA_ROOT is not set")
def test_human_speech():
    """CMU AN4 in LibriSpeech's layout: a few steps of a small Jasper bring the loss down."""
    data = LibriSpeechDataOptions(
        "an4", "an4/LibriSpeech", ["train-clean-100"], ["dev-clean", "test-clean"]
    )
    context = Context(0, 8, 1, 16, 0, Path(os.environ["DATA_ROOT"]))
    task = LibriSpeech(replace(SMALL, widths=[32, 32, 48, 48]), data, context)
    task.prepare_data()
    torch.manual_seed(0)
    model = task.build_model().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for batch in take(task.train_stream(Shard(), 0), 60):
        out = task.loss(model, batch, None)
        (out.total / float(out.weight)).backward()
        optimizer.step()
        optimizer.zero_grad()
        letters = batch.tensors["target_lengths"].sum().item()
        losses.append(out.total.item() / letters)
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
