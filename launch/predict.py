"""Predictions for a user's own files, lines and texts, each printed as soon as it is there."""

from __future__ import annotations

import errno
import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from engine.config import ConfigProblem
from engine.precision import autocast
from engine.records import to_json
from engine.schema import read_dataclass
from launch.command_line import reports
from launch.entry import lost_output
from launch.trained import PROBLEMS, open_model
from tasks.base import BadInput, Input, Prediction, Task

OPTION = re.compile(r"[a-z_0-9]+=")  # of the prediction
OVERRIDE = re.compile(r"[+~]?[a-z_0-9]+(\.[a-z_0-9]+)+=")  # of the configuration


@reports(*PROBLEMS)
def run_predictions(
    path: Path, checkpoint: str, average: int, arguments: Sequence[str], batch: int, as_json: bool
) -> int:
    """The exit status: 1 if some of the inputs were bad, 2 if all were.

    `arguments` are files, options of the prediction and overrides; `batch` is of inputs at once.
    Stops with the last prediction that could be printed: with 0 where the reader has seen enough.
    """
    if batch < 1:
        raise ConfigProblem([f"--batch must be at least 1, not {batch}"])
    options = [text for text in arguments if OPTION.match(text)]
    overrides = [text for text in arguments if OVERRIDE.match(text)]
    sources = [text for text in arguments if text not in (*options, *overrides)]
    model = open_model(path, checkpoint, average, overrides)
    chosen = read_options(model.task, options)
    if not model.trained.files:  # a run that did not keep its vocabulary: the data has it
        model.task.prepare_data()
    device = torch.device(model.config.hardware.device)
    model.configure(device)
    module = model.build(device)
    good = bad = 0
    as_text = partial(_as_text, by_line=model.task.by_line, named=len(sources) > 1)
    number_format = model.config.hardware.precision
    for group in _groups(model.task.read_inputs(sources, chosen), batch):
        values = [item.value for item in group if not isinstance(item.value, BadInput)]
        found: Iterator[Prediction] = iter(())
        if values:
            with torch.inference_mode(), autocast(number_format, device):
                found = iter(model.task.predict(module, values, chosen))
        for item in group:
            prediction = None if isinstance(item.value, BadInput) else next(found)
            if prediction is None:
                bad += 1
                print(f"{item.name}: {item.value}", file=sys.stderr, flush=True)
            else:
                good += 1
            line = _as_json(item, prediction) if as_json else as_text(item, prediction)
            if line is not None:
                print(line, flush=True)
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


def _as_text(item: Input, found: Prediction | None, *, by_line: bool, named: bool) -> str | None:
    """None for nothing. An empty line stands for a line that is bad, so that lines correspond."""
    if found is None:
        return "" if by_line and ", line " in item.name else None
    return f"{item.name}: {found['text']}" if named and not by_line else str(found["text"])


def _as_json(item: Input, found: Prediction | None) -> str:
    about = {"problem": str(item.value)} if found is None else found
    shown = {"name": item.name} | {key: about[key] for key in about if key != "text"}
    return json.dumps(to_json(shown), ensure_ascii=False, allow_nan=False)
