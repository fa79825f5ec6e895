"""Beam search, of a batch of sentences at once.

A hypothesis scores Σ log p of its words and of its end, divided by (how many these are)^α. At
every step the 2 · beam best continuations of a sentence are looked at: an end among the first
`beam` finishes a hypothesis, and the first `beam` others continue. A sentence is done with `beam`
finished hypotheses or at its greatest length, as in fairseq. It is done earlier if no hypothesis
that continues can beat the best finished one any more: log p ≤ 0, so that a score now, divided
as at the greatest length, is a bound. The result is the same.

Among equal scores the hypothesis before, then the word with the smaller number, then what was
finished first wins. A sentence's greatest length is its own, so that its translation does not
depend on the batch.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tasks.wmt14.model import POSITIONS, Transformer

PIECE = 128  # words of a hypothesis that are looked at together


@dataclass
class BeamOptions:
    """The default is the paper's search."""

    beam: int = 4
    alpha: float = 0.0  # of the length penalty
    extra: int = 50  # words of a translation beyond those of its source, at most
    longest: int = 256  # words of a translation, at most
    shortest: int = 1  # words of a translation, at least


class Hypothesis(NamedTuple):
    """Words without begin and end."""

    words: list[int]
    score: float


NOTHING = Hypothesis([], -math.inf)  # of a model that gives no word a probability


class Marks(NamedTuple):
    """Words that begin and end a translation, and that fill up and are never chosen."""

    begin: int
    end: int
    pad: int


@torch.no_grad()
def translate(
    model: Transformer,
    source: Tensor,
    source_lengths: Tensor,
    marks: Marks,
    options: BeamOptions | None = None,
) -> list[Hypothesis]:
    """The best hypothesis of every sentence of source, int64 (B, S).

    The `source_lengths`, (B,), count all words that the model is to see.
    """
    options = options or BeamOptions()
    _check(model, source_lengths, options)
    if not len(source):
        return []
    search = _Search(marks, options, source_lengths)
    state = model.start(*model.encode(source, source_lengths))
    tokens = torch.full_like(source_lengths, marks.begin)
    for step in itertools.count():
        logits = model.decode_step(tokens, state)
        # Half precision is enough for logits, and not for sums of logarithms.
        wide = torch.promote_types(logits.dtype, torch.float32)
        more = search.advance(step, logits.log_softmax(-1, dtype=wide))
        if more is None:
            break
        rows, sentences, tokens = more
        state.select(rows, sentences)
    return search.best


class _Search:
    """The hypotheses of the sentences that are not done yet: n sentences, w hypotheses each."""

    def __init__(self, marks: Marks, options: BeamOptions, source_lengths: Tensor) -> None:
        self.marks, self.options = marks, options
        self.limits = [min(n + options.extra, options.longest) for n in source_lengths.tolist()]
        self.best = [NOTHING for _ in self.limits]
        self.finished = [0 for _ in self.limits]
        self.places = list(range(len(self.limits)))  # of the n sentences in the batch
        self.scores = torch.zeros(len(self.limits), 1, device=source_lengths.device)  # (n, w)
        self.words = source_lengths.new_empty(len(self.limits), 1, 0)  # (n, w, step)

    def advance(self, step: int, log_p: Tensor) -> tuple[Tensor, Tensor | None, Tensor] | None:
        """From log p (n · w, V) to the next step's rows, sentences and words; None at the end.

        Rows and sentences are numbers among those of this step; sentences are None if all continue.
        """
        beam = self.options.beam
        self._forbid(step, log_p)
        sentences, vocabulary = len(self.places), log_p.shape[-1]
        by_sentence = log_p.view(sentences, -1, vocabulary)
        scores, place = first(by_sentence, self.scores, 2 * beam)
        parent, word = place // vocabulary, place % vocabulary
        ends = (word == self.marks.end) & (scores > -math.inf)
        self._finish(step, ends[:, :beam], parent, scores)

        going_on = ends.to(torch.uint8).argsort(dim=1, stable=True)[:, :beam]
        scores, parent, word = (x.gather(1, going_on) for x in (scores, parent, word))
        leading = scores[:, 0].tolist()
        done = [
            self._is_done(p, step, score) for p, score in zip(self.places, leading, strict=True)
        ]
        rows = parent + torch.arange(sentences, device=place.device)[:, None] * by_sentence.shape[1]
        kept = None
        if any(done):
            numbers = _close_up(done)
            if not numbers:
                return None
            kept = torch.tensor(numbers, device=place.device)
            self.places = [self.places[number] for number in numbers]
            scores, rows, word = scores[kept], rows[kept], word[kept]
        self.scores = scores
        self.words = torch.cat([self.words.flatten(0, 1)[rows], word[..., None]], 2)
        return rows.flatten(), kept, word.flatten()

    def _is_done(self, place: int, step: int, leading: float) -> bool:
        limit = self.limits[place]
        bound = leading / (limit + 1) ** self.options.alpha
        full = self.finished[place] == self.options.beam
        return full or step == limit or self.best[place].score >= bound

    def _forbid(self, step: int, log_p: Tensor) -> None:
        """Padding; an end before the smallest length; at the greatest anything else."""
        log_p[:, self.marks.pad] = -math.inf
        if step < self.options.shortest:
            log_p[:, self.marks.end] = -math.inf
        last = [self.limits[place] == step for place in self.places]
        if any(last):
            other = torch.arange(log_p.shape[-1], device=log_p.device) != self.marks.end
            forbidden = torch.tensor(last, device=log_p.device)[:, None, None] & other
            log_p.view(len(last), -1, log_p.shape[-1]).masked_fill_(forbidden, -math.inf)

    def _finish(self, step: int, ends: Tensor, parent: Tensor, scores: Tensor) -> None:
        """Counts the hypotheses that end here, and keeps them that are best so far."""
        normalised = scores / (step + 1) ** self.options.alpha
        for sentence, candidate in ends.nonzero().tolist():
            place = self.places[sentence]
            if self.finished[place] == self.options.beam:
                continue
            self.finished[place] += 1
            score = normalised[sentence, candidate].item()
            if score > self.best[place].score:
                words = self.words[sentence, parent[sentence, candidate]].tolist()
                self.best[place] = Hypothesis(words, score)


def first(log_p: Tensor, before: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` greatest sums of log p (n, w, V) and the scores before it (n, w), and where.

    Places count a sentence's w · V sums; of equal ones those that come first are taken. Which of
    them `topk` takes is not said, and differs between devices. What it takes is put in order; only
    if it had a choice, all of them are sorted. -inf is nobody's choice.
    """
    values, places = _greatest(log_p, before, min(count + 1, log_p[0].numel()))
    smallest = values[:, count - 1 : count]
    if ((values[:, count:] == smallest) & (smallest > -math.inf)).any():
        values, places = _sums(log_p, before).sort(dim=1, descending=True, stable=True)
        return values[:, :count], places[:, :count]
    places, order = places[:, :count].sort(dim=1)
    values, order = values[:, :count].gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, places.gather(1, order)


def _sums(log_p: Tensor, before: Tensor) -> Tensor:
    return (log_p + before[..., None]).flatten(1)


def _greatest(log_p: Tensor, before: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`topk` of the sums; of large vocabularies only in the pieces with the greatest maxima.

    A piece's greatest sum is the sum with its greatest log p, also when rounded.
    """
    hypotheses, vocabulary = log_p.shape[1:]
    if vocabulary % PIECE or hypotheses * vocabulary < 2 * count * PIECE:
        return _sums(log_p, before).topk(count)
    pieces = log_p.view(len(log_p), -1, PIECE)
    before = before.repeat_interleave(vocabulary // PIECE, dim=1)
    chosen = (pieces.amax(2) + before).topk(count).indices
    some = pieces.gather(1, chosen[..., None].expand(-1, -1, PIECE))
    values, places = _sums(some, before.gather(1, chosen)).topk(count)
    return values, chosen.gather(1, places // PIECE) * PIECE + places % PIECE


def _close_up(done: list[bool]) -> list[int]:
    """Numbers of those that are not done: of the last ones, some fill the places of the done."""
    count = done.count(False)
    movers = (number for number in range(count, len(done)) if not done[number])
    return [next(movers) if done[number] else number for number in range(count)]


def _check(model: Transformer, source_lengths: Tensor, options: BeamOptions) -> None:
    if model.training:
        raise ValueError("translate: the model must be in evaluation mode, model.eval()")
    most = (model.options.vocabulary - 2) // 2  # all but pad and end, at the first step
    if not 1 <= options.beam <= most:
        raise ValueError(
            f"translate: beam must be from 1 to {most} with "
            f"vocabulary={model.options.vocabulary}, not {options.beam!r}"
        )
    if not options.alpha >= 0:
        raise ValueError(f"translate: alpha must be at least 0, not {options.alpha!r}")
    if not 0 <= options.shortest <= options.longest < POSITIONS:
        raise ValueError(
            f"translate: shortest and longest must be 0 ≤ shortest ≤ longest < {POSITIONS}, "
            f"not {options.shortest!r} and {options.longest!r}"
        )
    if options.extra < options.shortest:
        raise ValueError(
            f"translate: extra must be at least shortest={options.shortest}, not {options.extra!r}"
        )
    if source_lengths.numel() and source_lengths.min() < 1:
        raise ValueError("translate: a sentence must have at least 1 word, its end")
