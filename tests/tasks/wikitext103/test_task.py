"""WikiText-103's streams, losses and perplexities."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.base import Batch, Context, DataProblem, Shard
from tasks.catalog import task_class
from tasks.wikitext103.model import TransformerXLOptions
from tasks.wikitext103.segments import Segment
from tasks.wikitext103.task import WikiText103, WikiTextDataOptions
from tests.tasks.contract import assert_task_contract, take

WORDS = 400


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text in which no word comes twice, so that a word tells its place."""
    root = tmp_path_factory.mktemp("data")
    folder = root / "text"
    folder.mkdir()
    words = [f"w{i}" for i in range(WORDS)]
    (folder / "wiki.train.tokens").write_text(" ".join(words) + "\n")
    (folder / "wiki.valid.tokens").write_text(" ".join(words[::3]) + "\n")
    (folder / "wiki.test.tokens").write_text(" ".join(words[::-4]) + "\n")
    return root


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def make(root: Path, vocabulary: int = WORDS + 1, **context: int) -> WikiText103:
    model = TransformerXLOptions(
        vocabulary, layers=2, d_model=8, heads=2, d_head=4, d_inner=12, cutoffs=[20, 100]
    )
    data = WikiTextDataOptions("text", "text", segment=6, memory=9, eval_columns=5)
    fields: dict[str, Any] = {
        "seed": 0,
        "micro": 12,
        "micro_batches": 4,
        "eval_batch": 4,
        "data_workers": 0,
    } | context
    return WikiText103(model, data, Context(data_root=root, **fields))


def halves(batch: Batch) -> list[Batch]:
    assert isinstance(batch, Segment)
    rows = batch.tensors["tokens"].shape[0]
    parts = []
    for part in (slice(0, 1), slice(1, rows)):
        tensors = {name: tensor[part] for name, tensor in batch.tensors.items()}
        parts.append(Segment(tensors, tensors["targets"].numel(), batch.fresh, batch.protocol))
    return list(parts)


def predicted(batch: Batch) -> list[bytes]:
    return [str(t).encode() for t in batch.tensors["targets"].flatten().tolist() if t >= 0]


def test_contract(root: Path):
    assert task_class("wikitext103") is WikiText103
    assert_task_contract(lambda **context: make(root, **context), halves, predicted)


def test_an_epoch_is_every_column_once(root: Path):
    task = make(root)
    assert task.epoch_units == 8 * (401 // 8 - 1)
    assert task.steps_per_epoch == math.ceil(49 / 6)
    batches = take(task.train_stream(Shard(), 0), task.steps_per_epoch * 4)
    assert sum(batch.units for batch in batches) == task.epoch_units


def test_the_memory_makes_segments_one_text(root: Path):
    """What is carried from segment to segment gives the loss of one long segment."""
    task = make(root)
    task.data_options.memory = 60
    long = make(root, micro=100)
    long.data_options.segment = 50
    torch.manual_seed(0)
    model = task.build_model().double().eval()
    total, carry = 0.0, None
    for batch in take(task.train_stream(Shard(0, 4), 0), task.steps_per_epoch):
        out = task.loss(model, batch, carry)
        total, carry = total + out.total.item(), out.carry
        assert carry is not None
    (whole,) = take(long.train_stream(Shard(0, 4), 0), 1)
    assert long.loss(model, whole, None).total.item() == pytest.approx(total, rel=1e-12)
    (fresh,) = take(task.train_stream(Shard(0, 4), 0), 1)
    assert task.loss(model, fresh, carry).total.equal(task.loss(model, fresh, None).total)


def test_perplexity(root: Path):
    task = make(root)
    assert task.summarize("valid", {"tokens": 4.0, "nll": 8.0}) == {
        "loss": 2.0,
        "ppl": pytest.approx(math.e**2),
    }
    assert task.summarize("valid", {"tokens": 1.0, "nll": 1e6})["ppl"] == math.inf


def test_losses_by_rank_are_parts_of_the_whole(root: Path):
    task, plain = make(root), make(root)
    task.data_options = replace(task.data_options, word_ranks=[10, 100])
    model = task.build_model().double().eval()
    (batch, *_), (same, *_) = (list(one.eval_batches("valid", Shard())) for one in (task, plain))
    counts, _ = task.count(model, batch, None)
    whole, _ = plain.count(model, same, None)
    assert {name: counts[name] for name in whole} == whole
    bands = ("words_1_10", "words_11_100", "words_101_401")
    assert set(counts) - set(whole) == {f"{w}_{b}" for w in ("tokens", "nll") for b in bands}
    assert sum(counts[f"tokens_{band}"] for band in bands) == whole["tokens"]
    assert sum(counts[f"nll_{band}"] for band in bands) == pytest.approx(whole["nll"], rel=1e-14)
    found = task.summarize("valid", counts)
    parts = [found[f"share_{band}"] * found[f"loss_{band}"] for band in bands]
    assert sum(parts) == pytest.approx(found["loss"], rel=1e-14)
    assert task.summarize("valid", counts | {"tokens_words_1_10": 0.0}).keys() == found.keys() - {
        "loss_words_1_10"
    }


@pytest.mark.parametrize("ranks", [[0], [5, 5], [7, 3], [401], [-1, 10]])
def test_ranks_that_are_no_ranks_are_refused(root: Path, ranks: list[int]):
    task = make(root)
    task.data_options = replace(task.data_options, word_ranks=ranks)
    with pytest.raises(DataProblem, match=r"data\.word_ranks=\[.*below the 401 words"):
        task.prepare_data()


def test_unigrams_with_add_one_smoothing(root: Path):
    """All 401 words once: each has probability 2/802."""
    name, metrics = make(root).baseline_metrics()
    assert name == "unigrams with add-one smoothing"
    assert metrics == {"valid/ppl": pytest.approx(401), "test/ppl": pytest.approx(401)}


def test_protocols_score_the_same_words(root: Path):
    task = make(root)
    model = task.build_model().double().eval()
    for split in (*task.splits, *task.final_splits):
        counts = {"tokens": 0.0, "nll": 0.0}
        carry = None
        for batch in task.eval_batches(split, Shard()):
            found, carry = task.count(model, batch, carry)
            counts = {name: counts[name] + found[name] for name in counts}
        assert counts["tokens"] == len(task._text.splits[split.split("_")[0]]) - 1
    with pytest.raises(ValueError, match=r"split must be one of .* not 'dev'"):
        task.eval_batches("dev", Shard())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"vocabulary": 300}, "401 different words, but the model 300 "),
        ({"micro": 13}, r"batch.micro=13 must be a multiple of data.segment=6"),
        ({"micro_batches": 400}, "401 training tokens are too few for 800 columns"),
    ],
)
def test_what_does_not_fit_is_said(root: Path, change: dict[str, int], complaint: str):
    with pytest.raises(DataProblem, match=complaint):
        make(root, **change).prepare_data()


def test_only_some_protocols(root: Path):
    whole = make(root)
    options = WikiTextDataOptions(**{**vars(whole.data_options), "protocols": ["64"]})
    task = WikiText103(whole.model_options, options, whole.context)
    assert task.final_splits == ("test", "valid_64", "test_64")
    with pytest.raises(ValueError, match="not 'valid_128'"):
        task.eval_batches("valid_128", Shard())
    task.data_options.protocols = ["256"]
    with pytest.raises(DataProblem, match=r"must be some of \['64', '128'\], not \['256'\]"):
        task.prepare_data()


def test_validation_on_the_end_of_the_training_text(root: Path):
    task = make(root)
    task.data_options.train_first, task.data_options.validate_last = 80, 50
    task.prepare_data()
    batches = [*task.eval_batches("valid", Shard())]
    read = {word for batch in batches for word in batch.tensors["tokens"].flatten().tolist()}
    assert read <= {*task._text.splits["train"][-50:].tolist()}
    assert sum(batch.units for batch in batches) == 49
    for first in (352, None):
        task.data_options.train_first = first
        with pytest.raises(DataProblem, match=f"train_first={first} must leave so many of the 401"):
            task.prepare_data()


def test_rare_words_are_unknown(root: Path, tmp_path: Path):
    """The most common words keep their numbers."""
    text = "a a a b b c <unk> <unk> d a b"
    (tmp_path / "text").mkdir()
    for split in ("train", "valid", "test"):
        (tmp_path / "text" / f"wiki.{split}.tokens").write_text(f"{text}\n")
    task = make(tmp_path, vocabulary=4)
    task.data_options.most_common = 4
    assert task.words == ["<eos>", "a", "b", "<unk>"]
    assert task.encoded("valid").tolist() == [1, 1, 1, 2, 2, 3, 3, 3, 3, 1, 2, 0]
    task = make(tmp_path, vocabulary=3)
    task.data_options.most_common = 3
    with pytest.raises(DataProblem, match="<unk>, which has to stand for all other words"):
        task.prepare_data()


def test_only_the_first_words(root: Path):
    task = make(root)
    task.data_options.train_first = 80  # 10 for each of 8 columns
    assert task.epoch_units == 72
    task.prepare_data()
    batches = take(task.train_stream(Shard(), 0), task.steps_per_epoch * 4)
    seen = {word for batch in batches for word in batch.tensors["targets"].flatten().tolist()}
    assert seen <= {*task._text.splits["train"][:80].tolist()}
    assert len(seen) == 72
    task.data_options.train_first = 0
    with pytest.raises(DataProblem, match="train_first: must be at least 1 or null, not 0"):
        task.prepare_data()


def test_a_text_of_another_length_is_refused(root: Path):
    task = make(root)
    task.data_options.train_tokens = 500
    with pytest.raises(DataProblem, match="401 training tokens, but there must be 500"):
        task.prepare_data()


def test_real_text():
    """A step on WikiText-2 starts near the logarithm of the vocabulary."""
    root = Path(os.environ.get("DATA_ROOT", "/nowhere"))
    if not (root / "wikitext-2").is_dir():
        pytest.skip("needs $DATA_ROOT/wikitext-2/wiki.{train,valid,test}.tokens")
    model = TransformerXLOptions(
        33_278, layers=1, d_model=16, heads=2, d_head=8, d_inner=16, cutoffs=[2000, 10_000]
    )
    data = WikiTextDataOptions("wikitext-2", "wikitext-2", segment=32, memory=32)
    task = WikiText103(model, data, Context(0, 256, 2, 10, 0, root))
    task.prepare_data()
    (batch,) = take(task.train_stream(Shard(), 3), 1)
    out = task.loss(task.build_model(), batch, None)
    assert out.total.item() / float(out.weight) == pytest.approx(math.log(33_278), rel=0.3)
