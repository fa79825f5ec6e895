"""The files of a run: the only module that reads and writes them.

    outputs/<run id>/run.yaml       the frozen configuration, all that workers read     RunFile
                     status.json    how the run stands                                  Status
                     metrics.jsonl  one row per logged step and per evaluation          Row
                     record.json    what a finished or diverged run leaves              RunRecord

`results/runs/` holds published copies of records. NaN and infinities are the strings "NaN",
"Infinity" and "-Infinity" in the files, because strict JSON has no such numbers, and floats again
after reading.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from engine.files import write_atomically

RUN_FILE, STATUS_FILE, ROWS_FILE, RECORD_FILE = (
    "run.yaml",
    "status.json",
    "metrics.jsonl",
    "record.json",
)
FINISHED, DIVERGED, RUNNING = "finished", "diverged", "running"
APART = ("path", "url")  # fields of a record that are not written
PLACES = ("paths", "cluster", "init_from")  # of a configuration; a record names no path
CURVE_POINTS = 60  # of a record's curves
TELEMETRY = "optimizer/"  # what columns of optimizer telemetry begin with
# Metrics whose definition has changed, and what the signature of a record with today's contains.
SIGNED = {"token_bleu": "tok:moses-en"}

Row = dict[str, float]
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def wandb_id(run_id: str) -> str:
    """W&B's id of a run, which has no slashes."""
    return run_id.replace("/", "-")


class RecordError(ValueError):
    """A file of a run that can't be read; the message names it."""


# --- run.yaml -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunFile:
    """The frozen run: its id, the fingerprint of its recipe, and the resolved configuration."""

    run_id: str
    fingerprint: str
    config: dict[str, Any]
    notes: str = ""  # the header of the experiment's file
    paper: dict[str, Any] = field(default_factory=dict)  # the paper's row: table, row, metrics
    changed_by_scale: dict[str, list[Any]] = field(default_factory=dict)  # key: [paper's, used]


def write_run_file(folder: Path, run: RunFile) -> None:
    """Freezes a run."""
    text = yaml.safe_dump(asdict(run), sort_keys=False, allow_unicode=True)
    write_atomically(folder / RUN_FILE, text.encode(), durable=False)


def read_run_file(folder: Path) -> RunFile:
    """Also of earlier versions of the suite, in today's vocabulary."""
    path = folder / RUN_FILE
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
        config = upgrade_config(dict(raw["config"]))
        return RunFile(
            str(raw["run_id"]),
            str(raw["fingerprint"]),
            config,
            str(raw.get("notes", "")),
            dict(raw.get("paper", {})),
            dict(raw.get("changed_by_scale", {})),
        )
    except (yaml.YAMLError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not a run file: {' '.join(str(error).split())}") from error


def upgrade_config(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration that an earlier version wrote, in today's vocabulary."""
    config = dict(config)
    if isinstance(paths := config.get("paths"), dict):
        config["paths"] = {key: value for key, value in paths.items() if key != "records"}
    decay = config.get("decay")
    rules = decay.get("rules") if isinstance(decay, dict) else None
    if isinstance(decay, dict) and isinstance(rules, dict):
        scaled = [p for p, rule in rules.items() if isinstance(rule, dict) and "per_weight" in rule]
        if scaled:
            config["lr_per_tensor"] = "sqrt_size"
            kept = {pattern: rule for pattern, rule in rules.items() if pattern not in scaled}
            config["decay"] = decay | {"rules": kept}
    return config


# --- status.json ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """How a run stands; `kind` is empty for a run that never started."""

    kind: str = ""
    message: str = ""
    step: int | None = None

    @property
    def is_finished(self) -> bool:
        return self.kind == FINISHED


def read_status(folder: Path) -> Status:
    """An empty status where there is none, or none that can be read."""
    try:
        raw = json.loads((folder / STATUS_FILE).read_text(encoding="utf-8"))
        step = raw.get("step")
        return Status(
            str(raw["status"]),
            str(raw.get("message", "")),
            step if isinstance(step, int) else None,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Status()


def write_status(folder: Path, kind: str, message: str, step: int | None = None) -> None:
    """Atomically: a reader sees the old status or the new one."""
    raw = {"status": kind, "message": message} | ({} if step is None else {"step": step})
    data = (json.dumps(raw) + "\n").encode()
    try:
        write_atomically(folder / STATUS_FILE, data, durable=False)
    except OSError:
        with (folder / STATUS_FILE).open("r+b") as file:  # a full disk: overwrite in place
            file.write(data)
            file.truncate()


# --- metrics.jsonl --------------------------------------------------------------------------------


def encode_row(row: Mapping[str, float]) -> bytes:
    """A line of metrics.jsonl."""
    row["step"]  # a row without one could not be dropped at a resume
    return json.dumps(to_json(row), allow_nan=False).encode() + b"\n"


def decode_row(line: bytes) -> Row:
    """ValueError for anything but a JSON object of numbers with a step."""
    try:
        raw = json.loads(line)
    except RecursionError:
        raise ValueError("a row is not nested") from None
    if not isinstance(raw, dict) or "step" not in raw:
        raise ValueError("a row is a JSON object with a step")
    return {key: _number(key, value) for key, value in raw.items()}


def read_intact_rows(path: Path) -> tuple[list[tuple[bytes, Row]], bool]:
    """Lines and their rows up to the first damaged line, and whether others follow that one.

    A damaged last line is what a kill leaves and counts as none.
    """
    raw = path.read_bytes().split(b"\n")
    if raw[-1] == b"":
        raw.pop()
    found: list[tuple[bytes, Row]] = []
    for line in raw:
        try:
            found.append((line, decode_row(line)))
        except ValueError:
            break
    return found, len(found) < len(raw) - 1


def read_rows(path: Path) -> list[Row]:
    """The rows of a metrics.jsonl as logged, also while it is being written or after a kill."""
    lines, damaged = read_intact_rows(path)
    if damaged:
        raise RecordError(f"{path}: line {len(lines) + 1} is not a row")
    return [row for _, row in lines]


def sort_rows(rows: Iterable[Mapping[str, float]]) -> list[Row]:
    """Rows by step, a training row before an evaluation of its step; of equals the last one.

    A run that resumes, and its W&B mirror, may log the same step again.
    """

    def is_evaluation(row: Mapping[str, float]) -> bool:
        return not any(key.startswith("train/") for key in row)

    latest = {(row["step"], is_evaluation(row)): dict(row) for row in rows}
    return [latest[key] for key in sorted(latest)]


class RowTail:
    """The newest values of a growing metrics.jsonl; each call reads only what is new."""

    AT_FIRST = 1 << 16  # bytes from the end

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._offset = 0, 0  # the inode changes where a resumed run drops rows
        self._merged: Row = {}

    def read(self) -> Row:
        """The newest value of every key seen so far."""
        with suppress(OSError), self._path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._inode or found.st_size < self._offset:
                self._inode, self._merged = found.st_ino, {}
                self._offset = max(0, found.st_size - self.AT_FIRST)
            file.seek(self._offset)
            *whole, torn = file.read().split(b"\n")
            for line in whole:
                with suppress(ValueError):  # the first may begin in the middle of a row
                    self._merged |= decode_row(line)
            self._offset = file.tell() - len(torn)
        return self._merged


# --- record.json ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunRecord:
    """What a run leaves when it has finished or diverged; names no host, user or path."""

    run_id: str
    experiment: str
    scale: str
    seed: int
    fingerprint: str
    final: dict[str, float]  # metrics at the end, as rows have them; empty for a diverged run
    best: dict[str, float]  # metrics at the best evaluation of the headline
    wall_s: float
    plan: dict[str, Any]
    environment: dict[str, Any]  # commit, versions, hardware
    config: dict[str, Any]
    date: str = ""
    status: str = FINISHED
    last: dict[str, float] = field(
        default_factory=dict
    )  # of the last weights, if final's are others
    skipped_steps: int = 0
    meters: dict[str, float] = field(default_factory=dict)  # medians over the logged rows
    signature: str = ""  # how the metrics are calculated
    curves: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # thinned
    parameters: int = 0
    data_manifest: dict[str, Any] = field(default_factory=dict)  # counts, checksums, differences
    path: Path | None = field(default=None, compare=False)  # where it was read from
    url: str = field(default="", compare=False)  # of a run that was read from W&B

    @property
    def task(self) -> str:
        return str(self.config["task"]["name"])

    @property
    def data(self) -> str:
        return str(self.config["data"]["name"])

    @property
    def optimizer(self) -> str:
        return str(self.config["optimizer"]["name"])

    @property
    def steps(self) -> int:
        return int(self.plan["steps"])

    @property
    def units(self) -> int:
        """Images, utterances or tokens that the run was trained on, repetitions included."""
        return self.steps * int(self.plan["global_batch"])

    @property
    def commit(self) -> str | None:
        found = self.environment.get("commit")
        return None if found is None else str(found)

    @property
    def is_clean(self) -> bool:
        """Whether the code was that of the commit."""
        return self.commit is not None and self.environment.get("dirty") is False

    @property
    def hardware(self) -> str:
        """`8 × NVIDIA …` or the name of the CPU."""
        found = self.environment["hardware"]
        return str(found.get("name") or f"{found['count']} × {found['names'][0]}")

    @property
    def torch_version(self) -> str:
        return str(self.environment["versions"]["torch"])


def write_record(path: Path, record: RunRecord) -> None:
    """Pretty strict JSON with the keys in the order of the fields, written atomically."""
    raw = {f.name: getattr(record, f.name) for f in fields(RunRecord) if f.name not in APART}
    write_json(path, raw)


def read_record(path: Path) -> RunRecord:
    """What `write_record` wrote, also by earlier versions; RecordError names the file."""
    try:
        raw = read_json(path)
        known = {f.name for f in fields(RunRecord)} - {*APART}
        raw = _without_superseded(raw)
        record = RunRecord(**{k: v for k, v in raw.items() if k in known}, path=path)
        for metrics in (record.final, record.best, record.last, record.meters):
            for name, value in metrics.items():
                _number(name, value)
        _number("wall_s", record.wall_s)
        # Whatever a table shows must be there; these raise KeyError or TypeError otherwise.
        _ = record.task, record.data, record.optimizer, record.units, record.hardware
        _ = record.torch_version
    except OSError as error:
        raise RecordError(f"{path} can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise RecordError(f"{path} is not a run record: {error!r}") from error
    return record


def _without_superseded(raw: dict[str, Any]) -> dict[str, Any]:
    """A record without metrics that it measured by a definition that is no longer used."""
    signature = str(raw.get("signature", ""))
    gone = [metric for metric, mark in SIGNED.items() if mark not in signature]

    def kept(metrics: Any) -> Any:
        if not isinstance(metrics, dict):
            return metrics
        return {k: v for k, v in metrics.items() if k.rpartition("/")[2] not in gone}

    return raw | {key: kept(raw[key]) for key in ("final", "best", "curves") if key in raw}


def find_records(folder: Path) -> list[Path]:
    """Published records below `results/runs/`, or those beside the runs below `outputs/`."""
    return sorted(
        path
        for path in folder.rglob("*.json")
        if path.name == RECORD_FILE or not (path.parent / RUN_FILE).exists()
    )


def read_records(folder: Path) -> list[RunRecord]:
    """Every published record below a folder, in the order of run ids; each id once."""
    found: dict[str, RunRecord] = {}
    for path in find_records(folder):
        record = read_record(path)
        if record.run_id in found:
            raise RecordError(f"{path}: {record.run_id} is also in {found[record.run_id].path}")
        found[record.run_id] = record
    return [found[run_id] for run_id in sorted(found)]


def read_own_records(outputs: Path) -> list[RunRecord]:
    """The records beside the runs below `outputs/`; damaged ones are left out."""
    found = []
    for path in sorted(outputs.rglob(RECORD_FILE)):
        with suppress(RecordError):
            found.append(read_record(path))
    return found


def thin_curves(
    rows: Sequence[Row], points: int = CURVE_POINTS
) -> dict[str, dict[str, list[float]]]:
    """A record's curves: training loss and all evaluations by step and epoch, six digits each.

    Which steps are kept depends on the rows' steps alone, so that all seeds have the same. What is
    measured on a few batches is averaged between the kept points; evaluations stay as they are.
    """
    names = {name for row in rows for name in row if "/" in name}
    apart = ("train/", "speed/", TELEMETRY)
    kept = sorted(n for n in names if n == "train/loss" or not n.startswith(apart))
    found = {}
    for metric in kept:
        own = [row for row in rows if metric in row]
        parts = [part for part in np.array_split(np.arange(len(own)), points) if len(part)]
        found[metric] = {
            "step": [own[part[-1]]["step"] for part in parts],
            "epoch": [_six_digits(own[part[-1]]["epoch"]) for part in parts],
            "value": [
                _six_digits(
                    float(np.mean([own[i][metric] for i in part]))
                    if is_averaged(metric)
                    else own[part[-1]][metric]
                )
                for part in parts
            ],
        }
    return found


def is_averaged(metric: str) -> bool:
    """Whether single values are noise around the quantity of interest; never an evaluation's."""
    return metric in ("train/loss", "train/grad_norm") or metric.startswith("speed/")


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")


# --- JSON with NaN and infinities -----------------------------------------------------------------


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Pretty strict JSON, written atomically."""
    text = json.dumps(to_json(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; ValueError for anything else, however deeply nested."""
    try:
        found = from_json(json.loads(path.read_text(encoding="utf-8")))
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: must be a JSON object, not {type(found).__name__}")
    return found


def to_json(value: Any) -> Any:
    """The value with NaN and infinities as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def from_json(value: Any) -> Any:
    """The inverse of `to_json`."""
    if isinstance(value, str):
        return _FLOATS.get(value, value)
    if isinstance(value, dict):
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return value


def _number(name: str, value: Any) -> float:
    value = from_json(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, not {value!r}")
    return value
