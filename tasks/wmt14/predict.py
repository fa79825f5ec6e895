"""What a translation model predicts: for the examples of an evaluation, and for any lines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from tasks.base import BadInput, Batch, DataProblem, HubFacts, Input, Prediction, Task
from tasks.texts import read_lines
from tasks.wmt14.beam import Hypothesis
from tasks.wmt14.bleu import sentence_bleu
from tasks.wmt14.corpus import HeldOut
from tasks.wmt14.model import POSITIONS
from tasks.wmt14.units import BEGIN, END, UNKNOWN, Units

FILE = "sentencepiece.model"


@dataclass
class TranslateOptions:
    """What becomes of a line with characters that the vocabulary does not have."""

    unknown: str = "refuse"  # the line; or "replace" the characters by the unknown unit


class TranslationPredictions(Task):
    """The part of the task that translates texts."""

    PredictOptions = TranslateOptions
    by_line = True
    hub = HubFacts(
        "translation",
        {"sacrebleu": ("bleu", "sacreBLEU"), "token_bleu": ("bleu", "BLEU of tokenised text")},
        languages=("en", "de"),
        example="lines.en",
    )
    model_options: Any
    data_options: Any
    given_units: Units | None = None

    @property
    @abstractmethod
    def units(self) -> Units:
        """The subword vocabulary."""

    @abstractmethod
    def translate(
        self, model: nn.Module, sources: Sequence[np.ndarray], split: str
    ) -> list[Hypothesis]:
        """The best hypothesis for each source, BEGIN … END, decoded as in a split."""

    @abstractmethod
    def length_penalty(self, split: str) -> float:
        """The exponent of the lengths that scores are divided by."""

    def model_files(self) -> dict[str, bytes]:
        return {FILE: self.units.model}

    def use_model_files(self, files: Mapping[str, bytes]) -> None:
        try:
            self.given_units = Units(files[FILE])
        except (KeyError, RuntimeError) as error:
            raise DataProblem(f"{FILE}: not a sentencepiece model: {error!r}") from error
        size, wanted = self.given_units.size, self.model_options.vocabulary
        if size != wanted:
            raise DataProblem(f"{FILE}: {size:,} subwords, but the model has {wanted:,}")

    def protocol(self, split: str) -> str:
        options = self.data_options
        return (
            f"{self.signature()}; beam {options.beam}, length penalty {self.length_penalty(split)}"
        )

    def preprocessing(self) -> dict[str, Any]:
        return {
            "tokenizer": FILE,
            "white_space": "every run of it becomes one space",
            "begin": BEGIN,
            "end": END,
            "unknown": UNKNOWN,
            "source_language": "en",
            "target_language": "de",
        }

    def keep(
        self, batch: Batch, lines: HeldOut, found: Sequence[Hypothesis], texts: Sequence[str]
    ) -> None:
        """Adds the wanted ones of a batch to the predictions."""
        assert self.predictions is not None
        rows = zip(batch.tensors["line"].tolist(), found, texts, strict=True)
        for line, hypothesis, text in rows:
            if self.predictions.wants(line):
                self.predictions.rows[line] = {
                    "id": f"line {line + 1}",
                    "input": lines.sources[line],
                    "reference": lines.references[line],
                    "hypothesis": text,
                    "sentence_bleu": sentence_bleu(text, lines.references[line]),
                    "score": hypothesis.score,  # log p / length^penalty
                }

    def read_inputs(self, sources: Sequence[str], options: TranslateOptions) -> Iterator[Input]:
        known = ("refuse", "replace")
        if options.unknown not in known:
            yield Input("unknown", BadInput(f"must be one of {known}, not {options.unknown!r}"))
            return
        for source in sources or ("-",):
            for line in read_lines(source):
                if isinstance(line.value, BadInput):
                    yield line
                else:
                    yield Input(line.name, self._encoded(line.value, options))

    def predict(self, model: nn.Module, inputs: Sequence[Any], options: Any) -> list[Prediction]:
        """An empty line is its own translation."""
        there = [tokens for _, tokens in inputs if len(tokens) > 2]
        found = iter(self.translate(model, there, "") if there else ())
        predictions = []
        for text, tokens in inputs:
            hypothesis = next(found) if len(tokens) > 2 else Hypothesis([], 0.0)
            (translation,) = self.units.decode([hypothesis.words])
            predictions.append(
                {
                    "input": text,
                    "hypothesis": translation,
                    "score": hypothesis.score,
                    "text": translation,
                }
            )
        return predictions

    def _encoded(self, line: str, options: TranslateOptions) -> tuple[str, np.ndarray] | BadInput:
        (ids,) = self.units.encode([line])
        if UNKNOWN in ids and options.unknown == "refuse":
            strange = sorted({c for c in line if UNKNOWN in self.units.encode([c])[0]})
            shown = ", ".join(map(repr, strange[:5]))
            what = f"the vocabulary has no {shown}; unknown=replace translates the rest"
            return BadInput(what)
        if len(ids) + 2 > POSITIONS:
            most = POSITIONS - 2
            return BadInput(f"has {len(ids):,} subwords; {most:,} at most")
        return line, np.array([BEGIN, *ids, END], np.int32)
