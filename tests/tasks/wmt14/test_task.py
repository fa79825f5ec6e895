"""WMT14's streams, losses and translations."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from torch import nn

from tasks.base import Batch, Context, DataProblem, Shard
from tasks.catalog import task_class
from tasks.wmt14.beam import BeamOptions, translate
from tasks.wmt14.fairseq_backend import FairseqTransformer
from tasks.wmt14.made_up import make_made_up
from tasks.wmt14.model import Transformer
from tasks.wmt14.task import MARKS, Pairs, Wmt14, Wmt14DataOptions, Wmt14ModelOptions
from tasks.wmt14.units import PAD
from tests.tasks.contract import assert_task_contract, float64_model, take

WORDS = 96


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    make_made_up(root / "pairs")
    return root


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def make(root: Path, backend: str = "own", variant: str = "nemo", **context: int) -> Wmt14:
    model = Wmt14ModelOptions(
        vocabulary=WORDS,
        encoder_layers=1,
        decoder_layers=1,
        d_model=8,
        d_ff=12,
        heads=2,
        backend=backend,
        variant=variant,
    )
    data = Wmt14DataOptions("pairs", "pairs", extra=4)
    fields: dict[str, Any] = {
        "seed": 0,
        "micro": 400,
        "micro_batches": 4,
        "eval_batch": 7,
        "data_workers": 0,
    } | context
    return Wmt14(model, data, Context(data_root=root, **fields))


def halves(batch: Batch) -> list[Batch]:
    assert isinstance(batch, Pairs)
    rows = len(batch.tensors["source"])
    parts: list[Batch] = []
    for part in (slice(0, 1), slice(1, rows)):
        tensors = {name: tensor[part] for name, tensor in batch.tensors.items()}
        expected = int((tensors["expected"] != PAD).sum())
        parts.append(replace(batch, tensors=tensors, expected=expected))
    return parts


def lines(batch: Batch) -> list[bytes]:
    return [str(line).encode() for line in batch.tensors["line"].tolist()]


def test_contract(root: Path):
    assert task_class("wmt14") is Wmt14
    assert_task_contract(lambda **context: make(root, **context), halves, lines)


def test_micro_batches_keep_the_budget_and_lose_no_pair(root: Path):
    task = make(root, micro_batches=1)
    task.prepare_data()
    batches = take(task.train_stream(Shard(), 0), task.steps_per_epoch)
    assert all(batch.units <= 400 for batch in batches)
    assert sum(len(batch.tensors["source"]) for batch in batches) == len(task._corpus.train)
    assert task.epoch_units == 400 * len(batches)
    share = 1 - sum(b.tokens for b in batches if isinstance(b, Pairs)) / sum(
        b.units for b in batches
    )
    assert f"{100 * share:.1f} % are padding" in task.about_data()


def test_the_loss_is_the_smoothed_mean_over_target_tokens(root: Path):
    """Against the definition: 0.9 on the right word, 0.1 spread over the V - 1 others."""
    task = make(root)
    model = float64_model(task)
    (batch,) = take(task.train_stream(Shard(), 0), 1)
    out = task.loss(model, batch, None)
    tensors = batch.tensors
    logits = model(tensors["source"], tensors["source_lengths"], tensors["target"])
    log_p = logits.log_softmax(-1)
    total, count = 0.0, 0
    for row, expected in enumerate(tensors["expected"].tolist()):
        for place, word in enumerate(expected):
            if word != PAD:
                right = log_p[row, place, word]
                others = log_p[row, place].sum() - right
                total -= (0.9 * right + 0.1 / (WORDS - 1) * others).item()
                count += 1
    assert out.total.item() == pytest.approx(total, rel=1e-12)
    assert out.weight == count


def test_metrics_are_those_of_the_translations(root: Path):
    task = make(root, eval_batch=64)
    task.prepare_data()
    model = float64_model(task)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    for split, alpha in (("test", 0.0), ("test_06", 0.6)):
        (batch,) = task.eval_batches(split, Shard())
        counts, _ = task.count(model, batch, None)
        metrics = task.summarize(split, counts)
        assert isinstance(model, Transformer)
        source, lengths = batch.tensors["source"], batch.tensors["source_lengths"]
        found = translate(model, source, lengths, MARKS, BeamOptions(alpha=alpha, extra=4))
        hypotheses = task._corpus.units.decode([h.words for h in found])
        held_out = task._held_out("test").references
        references = [held_out[line] for line in batch.tensors["line"].tolist()]
        expected = sacrebleu.corpus_bleu(hypotheses, [references])
        assert metrics["sacrebleu"] == expected.score
        assert metrics["length_ratio"] == pytest.approx(expected.sys_len / expected.ref_len)
        assert 0 < metrics["loss"] < math.inf


@pytest.mark.usefixtures("exact_fairseq")
def test_fairseqs_model_gives_the_same_loss_and_translations(root: Path):
    theirs_task, ours_task = make(root, "fairseq", "fairseq"), make(root, "own", "fairseq")
    theirs = float64_model(theirs_task)
    assert isinstance(theirs, FairseqTransformer)
    ours = ours_task.build_model().double().eval()
    ours.load_state_dict(theirs.as_ours().state_dict())
    (batch,) = take(theirs_task.train_stream(Shard(), 0), 1)
    totals = [t.loss(m, batch, None).total for t, m in ((theirs_task, theirs), (ours_task, ours))]
    torch.testing.assert_close(*totals, rtol=1e-12, atol=0)
    for batch in theirs_task.eval_batches("valid", Shard()):
        with torch.no_grad():
            counts = [
                t.count(m, batch, None)[0] for t, m in ((theirs_task, theirs), (ours_task, ours))
            ]
        assert counts[0] == pytest.approx(counts[1], rel=1e-12)


@pytest.mark.usefixtures("exact_fairseq")
def test_the_alias_of_fairseqs_model_follows_it(root: Path):
    model = make(root, "fairseq", "fairseq").build_model()
    assert isinstance(model, FairseqTransformer)
    before = model.as_ours()
    with torch.no_grad():
        nn.init.normal_(model.model.encoder.embed_tokens.weight)
    assert torch.equal(model.as_ours().embedding, model.model.encoder.embed_tokens.weight)
    assert model.as_ours() is before
    moved = model.double()  # new memory
    assert moved.as_ours().embedding.dtype == torch.float64
    assert not [name for name, _ in model.named_parameters() if "alias" in name]


def test_copying_the_source_is_what_to_beat(root: Path):
    task = make(root)
    task.prepare_data()
    name, metrics = task.baseline_metrics()
    assert name == "copying the source"
    assert set(metrics) == {
        f"{s}/{m}" for s in ("valid", "test") for m in ("sacrebleu", "token_bleu")
    }
    assert all(0 <= value < 60 for value in metrics.values())
    assert "tok:13a" in task.signature()


def test_meters_count_padding(root: Path):
    task = make(root)
    assert task.meters(1.0, 1) == {}
    model = float64_model(task)
    batches = take(task.train_stream(Shard(), 0), 3)
    for batch in batches:
        task.loss(model, batch, None)
    tokens = sum(batch.tokens for batch in batches if isinstance(batch, Pairs))
    found = task.meters(2.0, 4)
    assert found["speed/unpadded_tokens_per_s"] == 2 * tokens
    assert found["speed/padding_share"] == pytest.approx(1 - tokens / sum(b.units for b in batches))
    assert task.meters(1.0, 1) == {}


def test_too_little_text_for_a_step(root: Path):
    with pytest.raises(
        DataProblem, match=r"micro-batches of 400 tokens are fewer than the 9,999 of"
    ):
        make(root, micro_batches=9999).prepare_data()


@pytest.mark.skipif("DATA_ROOT" not in os.environ, reason="DATA_ROOT is not set")
def test_real_pairs():
    """Multi30k: descriptions of pictures, in the suite's own layout."""
    task = Wmt14(
        Wmt14ModelOptions(vocabulary=4000, encoder_layers=1, decoder_layers=1, d_model=16, heads=2),
        Wmt14DataOptions("multi30k", "multi30k"),
        Context(0, 4096, 2, 64, 0, Path(os.environ["DATA_ROOT"])),
    )
    task.prepare_data()
    (batch,) = take(task.train_stream(Shard(1, 2), 5), 1)
    model = float64_model(task)
    with torch.no_grad():
        out = task.loss(model, batch, None)
    assert out.total.item() / float(out.weight) == pytest.approx(math.log(4000), rel=0.2)
    _, metrics = task.baseline_metrics()
    assert 0 < metrics["test/sacrebleu"] < 10


def test_only_every_third_pair(root: Path):
    task = make(root)
    task.data_options.train_every = 3
    pairs = task._corpus.train
    known = {tuple(pairs.source(i)) for i in range(0, len(pairs), 3)}
    assert task._packing.pairs == len(range(0, len(pairs), 3)) < len(pairs)
    batches = take(task.train_stream(Shard(), 0), task.steps_per_epoch * 4)
    seen = [
        tuple(row[:length].tolist())
        for batch in batches
        for row, length in zip(
            batch.tensors["source"], batch.tensors["source_lengths"].tolist(), strict=True
        )
    ]
    assert set(seen) <= known
    task.data_options.train_every = 0
    with pytest.raises(DataProblem, match="train_every: must be at least 1, not 0"):
        task.prepare_data()
