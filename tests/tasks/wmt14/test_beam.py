"""Beam search against fairseq's, and by its own rules."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.wmt14.beam import NOTHING, BeamOptions, Marks, first, translate
from tasks.wmt14.fairseq_backend import FairseqTransformer, to_fairseq
from tasks.wmt14.model import DecoderLayer, DecoderState, Transformer
from tests.tasks.wmt14.small import BEGIN, END, PAD, WORDS, sentences, tiny

MARKS = Marks(BEGIN, END, PAD)
LENGTHS = (5, 1, 8)


def talker(variant: str, seed: int, **some: Any) -> Transformer:
    """A random model that does not only repeat a word, and ends its sentences now and then."""
    torch.manual_seed(seed)
    model = tiny(variant, std=1.0, **some)
    layer = model.decoder[-1]
    assert isinstance(layer, DecoderLayer)
    with torch.no_grad():
        model.embedding.mul_(0.3)
        bias = layer.feed_forward_norm.bias
        model.embedding[END] += 0.7 * bias / bias.norm()
    return model


def both(seed: int) -> tuple[Transformer, FairseqTransformer]:
    ours = talker("fairseq", seed)
    theirs = FairseqTransformer(ours.options).double().eval()
    theirs.model.load_state_dict(to_fairseq(ours.state_dict()))
    return ours, theirs


def score(model: Transformer, source: Tensor, words: list[int], alpha: float) -> float:
    """By all words at once."""
    target = torch.tensor([[BEGIN, *words]])
    log_p = model(source[None], None, target).log_softmax(-1)[0]
    following = torch.tensor([*words, END])
    total = log_p.gather(1, following[:, None]).sum()
    return float(total / (len(words) + 1) ** alpha)


@pytest.mark.usefixtures("exact_fairseq")
def test_finds_what_fairseq_finds():
    """Several sentences at once; fairseq one by one, as its greatest length is the batch's."""
    lengths_found: set[int] = set()
    searches = ((1, 0.0), (2, 0.6), (4, 0.0), (4, 0.6), (5, 1.0))
    for seed, (beam, alpha) in itertools.product(range(4), searches):
        ours, theirs = both(seed)
        source, lengths = sentences(*LENGTHS)
        options = BeamOptions(beam, alpha, extra=9, longest=14, shortest=seed % 2)
        together = translate(ours, source, lengths, MARKS, options)
        for row, (length, one) in enumerate(zip(LENGTHS, together, strict=True)):
            alone = source[row : row + 1, :length]
            other = theirs.translate(alone, None, MARKS, options)[0]
            assert one.words == other.words, (seed, beam, alpha)
            assert one.score == pytest.approx(other.score, rel=1e-10)
            lengths_found.add(len(one.words))
    assert len(lengths_found - {0, 1, 10, 14}) > 0  # neither the least nor the greatest


@pytest.mark.usefixtures("exact_fairseq")
def test_finds_what_fairseq_finds_in_a_batch():
    ours, theirs = both(6)
    source, lengths = sentences(*[6] * 9)
    options = BeamOptions(alpha=0.6, extra=12)
    one = translate(ours, source, lengths, MARKS, options)
    other = theirs.translate(source, lengths, MARKS, options)
    assert [h.words for h in one] == [h.words for h in other]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_scores_are_those_of_the_model_and_do_not_depend_on_the_batch(seed: int, alpha: float):
    model = talker("nemo", seed)
    source, lengths = sentences(*LENGTHS)
    options = BeamOptions(alpha=alpha, extra=7)
    together = translate(model, source, lengths, MARKS, options)
    for row, (length, one) in enumerate(zip(LENGTHS, together, strict=True)):
        alone = source[row : row + 1, :length]
        assert translate(model, alone, lengths[row : row + 1], MARKS, options)[0].words == one.words
        assert one.score == pytest.approx(score(model, alone[0], one.words, alpha), rel=1e-10)
        assert 1 <= len(one.words) <= length + 7
        assert not {PAD, END} & set(one.words)


def test_a_wide_beam_finds_the_best_of_all():
    """Sentences of 1 or 2 of 3 words: 3 ends and 9 continuations are the 12 that it looks at."""
    said = range(4, 7)
    for seed in range(3):
        model = talker("nemo", seed, vocabulary=26)
        assert model.output_bias is not None
        with torch.no_grad():
            silent = [word for word in range(26) if word not in (END, *said)]
            model.output_bias[silent] = -100.0
        source, lengths = torch.randint(4, 26, (1, 3)), torch.tensor([3])
        everything = [[a] for a in said] + [[a, b] for a in said for b in said]
        scores = {tuple(words): score(model, source[0], words, 0.0) for words in everything}
        options = BeamOptions(beam=12, extra=1, longest=2)
        found = translate(model, source, lengths, MARKS, options)[0]
        assert tuple(found.words) == max(scores, key=lambda words: scores[words])


@pytest.mark.parametrize(("bias", "expected"), [(-1e3, [2] + 3 * [8] + 7 * [4]), (50.0, [2, 8])])
def test_sentences_that_are_done_are_dropped(
    bias: float, expected: list[int], monkeypatch: pytest.MonkeyPatch
):
    """At their greatest lengths, 3 and 10; or when an end is so likely that nothing can follow."""
    model = talker("nemo", 0)
    assert model.output_bias is not None
    with torch.no_grad():
        model.output_bias[END] = bias
    rows: list[int] = []
    step = model.decode_step

    def counted(tokens: Tensor, state: DecoderState) -> Tensor:
        rows.append(len(tokens))
        return step(tokens, state)

    monkeypatch.setattr(model, "decode_step", counted)
    translate(model, *sentences(1, 8), MARKS, BeamOptions(extra=2))
    assert rows == expected


def test_a_beam_of_one_takes_the_likeliest_word_at_a_time():
    model = talker("nemo", 2)
    source, lengths = sentences(4)
    found = translate(model, source, lengths, MARKS, BeamOptions(beam=1, extra=6))[0]
    words: list[int] = []
    while len(words) < 10:
        log_p = model(source, lengths, torch.tensor([[BEGIN, *words]]))[0, -1].clone()
        log_p[PAD] = -math.inf
        if not words:
            log_p[END] = -math.inf
        words.append(int(log_p.argmax()))
        if words[-1] == END:
            words.pop()
            break
    assert found.words == words


def test_of_equal_scores_the_first_ones_are_taken():
    scores = torch.tensor([[1.0, 3.0, 2.0, 3.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0, 5.0, 0.0]])
    before = torch.zeros(2, 2)
    values, places = first(scores.view(2, 2, 3), before, 3)
    assert places.tolist() == [[1, 3, 2], [4, 0, 1]]
    assert values.tolist() == [[3.0, 3.0, 2.0], [5.0, 0.0, 0.0]]
    values, places = first(scores.view(2, 2, 3), torch.tensor([[0.0, -1.0], [0.0, -5.0]]), 3)
    assert places.tolist() == [[1, 2, 3], [0, 1, 2]]
    assert values.tolist() == [[3.0, 2.0, 2.0], [0.0, 0.0, 0.0]]


def test_the_greatest_sums_are_those_of_all_sums_in_order():
    torch.manual_seed(0)
    for log_p, before in (
        (torch.randint(9, (50, 4, 10)).float(), torch.randint(9, (50, 4)).float()),
        # In pieces, with a choice now and then.
        (torch.randint(999, (50, 2, 2048)).float(), torch.randint(99, (50, 2)).float()),
        (torch.randn(50, 4, 2048), 30 * torch.randn(50, 4)),
        (torch.randn(50, 4, 1000), torch.randn(50, 4)),
        (
            torch.randn(50, 1, 4096).index_fill(2, torch.arange(5, 4096), -math.inf),
            torch.zeros(50, 1),
        ),
        (torch.randn(50, 2, 4096), torch.tensor([0.0, -math.inf]).repeat(50, 1)),
    ):
        values, places = first(log_p, before, 7)
        sums = (log_p + before[..., None]).flatten(1)
        expected = sums.sort(dim=1, descending=True, stable=True)
        assert torch.equal(values, expected.values[:, :7])
        known = values > -math.inf
        assert torch.equal(places[known], expected.indices[:, :7][known])


def test_all_words_equal():
    """Then the words with the smallest numbers, and an end as soon as there may be one."""
    model = talker("nemo", 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    source, lengths = sentences(4, 2)
    for found in translate(model, source, lengths, MARKS, BeamOptions(extra=5)):
        assert found.words == [0]
        assert found.score == pytest.approx(-2 * math.log(WORDS))


def test_a_model_that_diverged_says_nothing():
    model = talker("nemo", 0)
    with torch.no_grad():
        model.embedding.fill_(math.nan)
    assert translate(model, *sentences(4, 2), MARKS, BeamOptions(extra=3)) == [NOTHING, NOTHING]


def test_no_sentence_at_all():
    model = talker("nemo", 0)
    assert translate(model, torch.empty(0, 3).long(), torch.empty(0).long(), MARKS) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beam": 0}, "beam must be from 1 to 14 with vocabulary=31, not 0"),
        ({"beam": 15}, "beam must be from 1 to 14 with vocabulary=31, not 15"),
        ({"alpha": -1.0}, "alpha must be at least 0, not -1.0"),
        ({"longest": 1024}, "shortest ≤ longest < 1024, not 1 and 1024"),
        ({"extra": 0}, "extra must be at least shortest=1, not 0"),
    ],
)
def test_wrong_options_are_named(wrong: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        translate(talker("nemo", 0), *sentences(4, 2), MARKS, BeamOptions(**wrong))


def test_wrong_arguments_are_named():
    model, (source, lengths) = talker("nemo", 0), sentences(4, 2)
    with pytest.raises(ValueError, match="at least 1 word"):
        translate(model, source, lengths - 2, MARKS)
    with pytest.raises(ValueError, match="evaluation mode"):
        translate(model.train(), source, lengths, MARKS)
