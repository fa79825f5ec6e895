"""The files of a run: the only module that reads and writes them, but for metrics.jsonl.

    outputs/<run id>/run.yaml       the frozen configuration, all that workers read     RunFile
                     status.json    how the run stands                                  Status
                     metrics.jsonl  one row per logged step and per evaluation          engine.rows
                     record.json    what a finished or diverged run leaves              RunRecord

`results/runs/` holds published copies of records. NaN and infinities are the strings "NaN",
"Infinity" and "-Infinity" in the files, because strict JSON has no such numbers, and floats again
after reading.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from tasks.files import parse_json, write_atomically

RUN_FILE, STATUS_FILE, RECORD_FILE = "run.yaml", "status.json", "record.json"
FINISHED, DIVERGED, RUNNING = "finished", "diverged", "running"
APART = ("path", "url")  # fields of a record that are not written
PLACES = ("paths", "cluster", "init_from")  # of a configuration; a record names no path
# Metrics whose definition has changed, and what the signature of a record with today's contains.
SIGNED = {"token_bleu": "tok:moses-en"}

_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


EVALUATED = "evaluated"  # in W&B, the configuration of an evaluation has it: run, weights, splits
LONGEST_ID = 120  # characters; W&B accepts 128 in the name of an artifact, which has a suffix


def wandb_id(run_id: str) -> str:
    """W&B's id of a run: letters, digits, dots, dashes and underscores."""
    plain = re.sub(r"[^\w.-]", "-", run_id, flags=re.ASCII)
    if len(plain) <= LONGEST_ID:
        return plain
    return f"{plain[: LONGEST_ID - 9]}-{sha256(plain.encode()).hexdigest()[:8]}"


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
    user_configs: dict[str, str] = field(default_factory=dict)  # text of files of --config-dir


def write_run_file(folder: Path, run: RunFile) -> None:
    """Freezes a run."""
    write_atomically(folder / RUN_FILE, run_file_text(run).encode(), durable=False)


def read_run_file(folder: Path) -> RunFile:
    """Also of earlier versions of the suite, in today's vocabulary."""
    path = folder / RUN_FILE
    return parse_run_file(path.read_bytes(), str(path))


def run_file_text(run: RunFile) -> str:
    """The content of run.yaml."""
    return yaml.safe_dump(asdict(run), sort_keys=False, allow_unicode=True)


def parse_run_file(content: bytes, name: str) -> RunFile:
    """The other way; RecordError, with `name`, if it is something else."""
    try:
        raw = yaml.safe_load(content.decode())
        config = upgrade_config(dict(raw["config"]))
        return RunFile(
            str(raw["run_id"]),
            str(raw["fingerprint"]),
            config,
            str(raw.get("notes", "")),
            dict(raw.get("paper", {})),
            dict(raw.get("changed_by_scale", {})),
            dict(raw.get("user_configs", {})),
        )
    except (yaml.YAMLError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"{name} is not a run file: {' '.join(str(error).split())}") from error


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
        raw = parse_json((folder / STATUS_FILE).read_text(encoding="utf-8"))
        step = raw.get("step")
        return Status(
            str(raw["status"]),
            str(raw.get("message", "")),
            step if isinstance(step, int) else None,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Status()


def write_status(folder: Path, kind: str, message: str, step: int | None = None) -> None:
    """Atomically: a reader sees the old status or the new one."""
    raw = {"status": kind, "message": message} | ({} if step is None else {"step": step})
    data = (json.dumps(raw) + "\n").encode()
    try:
        write_atomically(folder / STATUS_FILE, data, durable=False)
    except OSError as reason:
        try:
            with (folder / STATUS_FILE).open("r+b") as file:  # a full disk: overwrite in place
                file.write(data)
                file.truncate()
        except FileNotFoundError:
            raise reason from None


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
    # Medians over the logged rows, and means of update ratios where there was telemetry.
    meters: dict[str, float] = field(default_factory=dict)
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
                as_number(name, value)
        as_number("wall_s", record.wall_s)
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


# --- JSON with NaN and infinities -----------------------------------------------------------------


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Pretty strict JSON, written atomically."""
    text = json.dumps(to_json(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; ValueError for anything else."""
    try:
        found = from_json(parse_json(path.read_text(encoding="utf-8")))
    except ValueError as problem:
        raise ValueError(f"{path}: {problem}") from None
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


def as_number(name: str, value: Any) -> float:
    """A number of a file, also a non-finite one; ValueError for anything else."""
    value = from_json(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, not {value!r}")
    return value
