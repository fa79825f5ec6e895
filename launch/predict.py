"""Predictions for a user's own files, lines and texts, each printed as soon as it is there."""

from __future__ import annotations

import errno
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from engine.config import ConfigProblem
from engine.loading import LAST
from engine.precision import autocast
from engine.records import to_json
from engine.schema import read_dataclass
from launch.entry import lost_output
from launch.trained import PROBLEMS, open_model
from tasks.base import BadInput, Input, Prediction, Task

OPTION = re.compile(r"[a-z_0-9]+=")  # of the prediction
OVERRIDE = re.compile(r"[+~]?[a-z_0-9]+(\.[a-z_0-9]+)+=")  # of the configuration


@dataclass(frozen=True)
class Request:
    """What is asked for."""

    path: Path
    arguments: Sequence[str]  # files, options of the prediction and overrides
    checkpoint: str = LAST
    average: int = 1
    batch: int = 1  # inputs at once
    as_json: bool = False


def run_predictions(asked: Request) -> int:
    """The exit status: 1 if some of the inputs were bad, 2 if all were.

    Stops with the last prediction that could be printed: with 0 where the reader has seen enough.
    """
    options = [text for text in asked.arguments if OPTION.match(text)]
    overrides = [text for text in asked.arguments if OVERRIDE.match(text)]
    sources = [text for text in asked.arguments if text not in (*options, *overrides)]
    try:
        model = open_model(asked.path, asked.checkpoint, asked.average, overrides)
        chosen = read_options(model.task, options)
        if not model.trained.files:  # a run that did not keep its vocabulary: the data has it
            model.task.prepare_data()
        if asked.batch < 1:
            raise ConfigProblem([f"--batch must be at least 1, not {asked.batch}"])
        device = torch.device(model.config.hardware.device)
        model.configure(device)
        module = model.build(device)
    except PROBLEMS as problem:
        print(problem, file=sys.stderr)
        return 2
    good = bad = 0
    show = _Output(model.task, asked.as_json, with_names=len(sources) > 1)
    number_format = model.config.hardware.precision
    for group in _groups(model.task.read_inputs(sources, chosen), asked.batch):
        values = [item.value for item in group if not isinstance(item.value, BadInput)]
        found: Iterator[Prediction] = iter(())
        if values:
            with torch.inference_mode(), autocast(number_format, device):
                found = iter(model.task.predict(module, values, chosen))
        for item in group:
            if isinstance(item.value, BadInput):
                bad += 1
                show.problem(item.name, item.value)
            else:
                good += 1
                show.prediction(item.name, next(found))
            if lost := lost_output():
                return 0 if lost.errno == errno.EPIPE else 1
    return 0 if not bad else 1 if good else 2


def read_options(task: Task, given: Sequence[str]) -> Any:
    """A task's own options of predictions, as `temperature=0.8`."""
    raw: dict[str, Any] = {}
    problems: list[str] = []
    for text in given:
        key, _, value = text.partition("=")
        try:
            raw[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            problems.append(f"{text!r} can't be read: write key=value")
    options = read_dataclass(task.PredictOptions, raw, "", problems)
    if problems:
        raise ConfigProblem(problems)
    return options


def _groups(inputs: Iterator[Input], size: int) -> Iterator[list[Input]]:
    """So many good ones at once; a bad one is passed on without waiting for others."""
    group: list[Input] = []
    for item in inputs:
        group.append(item)
        if sum(not isinstance(i.value, BadInput) for i in group) in (0, size):
            yield group
            group = []
    if group:
        yield group


class _Output:
    """Predictions on the standard output, problems on the standard error."""

    def __init__(self, task: Task, as_json: bool, with_names: bool) -> None:
        self.task, self.as_json, self.with_names = task, as_json, with_names

    def prediction(self, name: str, found: Prediction) -> None:
        text = str(found.pop("text"))
        if self.as_json:
            self._line(_json({"name": name} | found))
        else:
            self._line(f"{name}: {text}" if self.with_names and not self.task.by_line else text)

    def problem(self, name: str, problem: BadInput) -> None:
        """An empty line stands for a line without a prediction, so that lines correspond."""
        print(f"{name}: {problem}", file=sys.stderr, flush=True)
        if self.as_json:
            self._line(_json({"name": name, "problem": str(problem)}))
        elif self.task.by_line and ", line " in name:
            self._line("")

    def _line(self, text: str) -> None:
        print(text, flush=True)


def _json(value: Any) -> str:
    return json.dumps(to_json(value), ensure_ascii=False, allow_nan=False)
