"""What a language model predicts: for the words of an evaluation, and after any text."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tasks.base import (
    BadInput,
    Carry,
    Counts,
    DataProblem,
    HubFacts,
    Input,
    Prediction,
    Shard,
    Task,
)
from tasks.files import parse_json
from tasks.texts import read_text
from tasks.wikitext103.model import TransformerXL
from tasks.wikitext103.segments import NO_TARGET, Protocol, Segment, evaluation_segments
from tasks.wikitext103.text import END, UNKNOWN
from tasks.wikitext103.tokens import tokenize

FILE = "words.json"
CONTEXT = 32  # words before an example that are shown with it
LONGEST = 100_000  # words of a continuation


@dataclass
class TextOptions:
    """Of a continuation, or of a score."""

    words: int = 50  # of a continuation
    temperature: float = 1.0  # 0: always the likeliest word
    top_k: int | None = None  # only so many of the likeliest words are drawn from
    top_p: float | None = None  # only the likeliest words that together have this probability
    seed: int = 0
    score: bool = False  # the perplexity of the text instead of a continuation
    tokenized: bool = False  # the text has WikiText's form: words divided by white space

    def problems(self) -> Iterator[str]:
        if not 1 <= self.words <= LONGEST:
            yield f"words must be from 1 to {LONGEST:,}, not {self.words}"
        if not 0 <= self.temperature < float("inf"):
            yield f"temperature must be at least 0 and finite, not {self.temperature}"
        if self.top_k is not None and self.top_k < 1:
            yield f"top_k must be at least 1, not {self.top_k}"
        if self.top_p is not None and not 0 < self.top_p <= 1:
            yield f"top_p must be above 0 and at most 1, not {self.top_p}"
        if not 0 <= self.seed < 2**63:
            yield f"seed must be from 0 to 2^63 - 1, not {self.seed}"


class TextPredictions(Task):
    """The part of the task that writes and scores texts."""

    PredictOptions = TextOptions
    hub = HubFacts(
        "text-generation",
        {"ppl": ("perplexity", "perplexity of words")},
        languages=("en",),
        example="text.txt",
    )
    model_options: Any
    given_words: list[str] | None = None

    @property
    @abstractmethod
    def words(self) -> list[str]:
        """The vocabulary, by the words' numbers."""

    @abstractmethod
    def encoded(self, split: str) -> np.ndarray:
        """A split's words as numbers."""

    @abstractmethod
    def protocol_of(self, split: str) -> Protocol:
        """How a split is read."""

    def model_files(self) -> dict[str, bytes]:
        return {FILE: (json.dumps(self.words, ensure_ascii=False) + "\n").encode()}

    def use_model_files(self, files: Mapping[str, bytes]) -> None:
        try:
            self.given_words = [str(word) for word in parse_json(files[FILE])]
        except (KeyError, TypeError, ValueError) as error:
            raise DataProblem(f"{FILE}: not a list of words: {error!r}") from error
        found, wanted = len(self.given_words), self.model_options.vocabulary
        if found != wanted or self.given_words[0] != END:
            raise DataProblem(
                f"{FILE}: {found:,} words, but the model has {wanted:,}; {END} must be the first"
            )

    def protocol(self, split: str) -> str:
        found = self.protocol_of(split)
        clamp = "" if found.clamp is None else f", distances up to {found.clamp}"
        same = ", the same context for every word" if found.same_length else ""
        return f"segments of {found.segment} words, memory of {found.memory}{clamp}{same}"

    def preprocessing(self) -> dict[str, Any]:
        return {
            "vocabulary": FILE,
            "words": "divided by white space, punctuation apart, as in WikiText",
            "end_of_line": END,
            "unknown": UNKNOWN if UNKNOWN in self.numbers else None,
        }

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def keep(self, model: nn.Module, batch: Segment, nll: Tensor, carry: Carry) -> None:
        """Adds the wanted segments of a batch, by where in the text they begin."""
        assert self.predictions is not None
        assert batch.protocol is not None
        text = self.encoded(batch.split)
        for row, position in enumerate(batch.tensors["position"].tolist()):
            index = (position - 1) // batch.protocol.segment
            if not self.predictions.wants(index):
                continue
            there = batch.tensors["targets"][row] != NO_TARGET
            count = int(there.sum())
            if not count:
                continue
            memory = None if batch.fresh or carry is None else carry[:, row : row + 1]
            likeliest = self._likeliest(
                model, batch.tensors["tokens"][row : row + 1], memory, batch
            )
            before = text[max(0, position - CONTEXT) : position]
            self.predictions.rows[position] = {
                "id": f"word {position}",
                "input": self._join(before),
                "reference": self._join(text[position : position + count]),
                "hypothesis": self._join(likeliest[:count]),
                "loss": (nll[row][there].sum(dtype=torch.float64) / count).item(),
                "tokens": count,
            }

    def _likeliest(
        self, model: nn.Module, tokens: Tensor, memory: Carry, batch: Segment
    ) -> list[int]:
        """The likeliest word at every place of a segment, given the words before it."""
        assert isinstance(model, TransformerXL)
        assert batch.protocol is not None
        hidden, _ = model.encode(tokens, memory, **_reading(batch.protocol))
        log_p = model.softmax.log_probabilities(hidden[0], model.embedding)
        likeliest: list[int] = log_p.argmax(-1).tolist()
        return likeliest

    def read_inputs(self, sources: Sequence[str], options: TextOptions) -> Iterator[Input]:
        problems = [*options.problems()]
        for problem in problems:
            yield Input("options", BadInput(problem))
        if problems:
            return
        for source in sources or ("-",):
            given = read_text(source)
            if isinstance(given.value, BadInput):
                yield given
            else:
                yield Input(given.name, self._numbered(given.value, options))

    def _numbered(self, text: str, options: TextOptions) -> np.ndarray | BadInput:
        """A text as words, after the end of a line that it begins with."""
        lines = text.split("\n")
        split = [line.split() if options.tokenized else tokenize(line) for line in lines]
        ended = len(split) if options.score else len(split) - 1  # a continuation stays in its line
        words = [END]
        for number, line in enumerate(split):
            words += [*line, END] if number < ended else line
        unknown = sorted({word for word in words if word not in self.numbers})
        if unknown and UNKNOWN not in self.numbers:
            shown = ", ".join(map(repr, unknown[:5]))
            return BadInput(f"the vocabulary has no {shown}, and no {UNKNOWN}")
        other = self.numbers.get(UNKNOWN, -1)
        return np.array([self.numbers.get(word, other) for word in words], np.int32)

    def predict(
        self, model: nn.Module, inputs: Sequence[Any], options: TextOptions
    ) -> list[Prediction]:
        made = self._score if options.score else self._continue
        return [made(model, words, options) for words in inputs]

    def _score(self, model: nn.Module, words: np.ndarray, _: TextOptions) -> dict[str, Any]:
        """By the code of an evaluation, in one column; every word of the text is predicted."""
        device = next(model.parameters()).device
        counts: Counts = {}
        carry: Carry = None
        for batch in evaluation_segments(words, 1, 1, self.protocol_of(""), Shard()):
            some, carry = self.count(model, batch.to(device), carry)
            counts = {name: counts.get(name, 0.0) + value for name, value in some.items()}
        found = self.summarize("", counts) | {"words": int(counts["tokens"])}
        found["unknown"] = int((words == self.numbers.get(UNKNOWN, -1)).sum())
        text = f"perplexity {found['ppl']:.2f} of {found['words']:,} words"
        return found | {"text": f"{text}, {found['unknown']:,} of them unknown"}

    def _continue(
        self, model: nn.Module, words: np.ndarray, options: TextOptions
    ) -> dict[str, Any]:
        assert isinstance(model, TransformerXL)
        reading, device = self.protocol_of(""), next(model.parameters()).device
        generator = torch.Generator().manual_seed(options.seed)
        memory: Carry = None
        tokens = torch.from_numpy(words.astype(np.int64)).to(device)[None]
        for start in range(0, tokens.shape[1], reading.segment):
            part = tokens[:, start : start + reading.segment]
            log_p, memory = model.log_probabilities(part, memory, **_reading(reading))
        drawn = [draw(log_p[0], options, generator)]
        while len(drawn) < options.words:
            last = torch.tensor([[drawn[-1]]], device=device)
            log_p, memory = model.log_probabilities(last, memory, **_reading(reading))
            drawn.append(draw(log_p[0], options, generator))
        text = self._join(drawn)
        return {"input": self._join(words[1:]), "hypothesis": text, "text": text}

    def _join(self, numbers: Sequence[int] | np.ndarray) -> str:
        return " ".join(self.words[number] for number in numbers)


def draw(log_p: Tensor, options: TextOptions, generator: torch.Generator) -> int:
    """A word from log p (V,): first the temperature, then the top k, then the top p of these.

    On the CPU in float64, so that a seed means the same everywhere. Of equal probabilities the
    word with the smaller number counts as the likelier one.
    """
    log_p, words = log_p.double().cpu().sort(descending=True, stable=True)
    if options.temperature == 0:
        return int(words[0])
    p = (log_p / options.temperature).softmax(0)[: options.top_k]
    if options.top_p is not None:
        before = (p / p.sum()).cumsum(0).roll(1)
        before[0] = 0.0
        p = p[: int((before < options.top_p).sum())]
    return int(words[torch.multinomial(p, 1, generator=generator)])


def _reading(protocol: Protocol) -> dict[str, Any]:
    return {
        "memory_length": protocol.memory,
        "clamp": protocol.clamp,
        "same_length": protocol.same_length,
    }
