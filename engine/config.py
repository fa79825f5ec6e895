"""The whole vocabulary of a run: what may stand in `run.yaml`, and a strict reader for it.

Plain dataclasses. The launcher reads what Hydra composed through `read_config`, and so do the
workers with the frozen file; every problem is collected, so that one message has them all.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from dataclasses import dataclass, field
from typing import Any

PRECISIONS = ("fp32", "bf16", "fp16", "fp64")
DEVICES = ("auto", "cpu", "cuda")
SCALES = ("paper", "mini", "smoke")
CLUSTERS = ("local", "slurm")


@dataclass(frozen=True)
class TaskConfig:
    """Which subject."""

    name: str


@dataclass(frozen=True)
class BatchConfig:
    """Units of one step over all processes, and of one micro-batch: both are science."""

    global_size: int
    micro: int


@dataclass(frozen=True)
class DecayConfig:
    """Which parameters decay: "all" or "matrices", and rules {pattern: {option: value}}.

    A rule's options are the optimizer's own (its lr follows the schedule too), and `per_weight`.
    """

    apply_to: str = "all"
    rules: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over the steps; warmup is a duration ("500 steps", "5 %")."""

    shape: str
    warmup: str = "0 steps"
    warmup_from: str = "zero"
    power: float = 2.0
    floor: float = 0.0
    floor_mode: str = "add"
    start: float = 0.0  # the learning rate that a warm-up begins with
    milestones: list[str] = field(default_factory=list)  # durations: where a staircase steps down
    factor: float = 0.1


@dataclass(frozen=True)
class GradientConfig:
    """What happens to gradients before the step; larc holds Larc's options."""

    clip_norm: float | None = None
    larc: dict[str, Any] | None = None


@dataclass(frozen=True)
class EvaluationConfig:
    """How often (a duration) and with how many examples at a time."""

    every: str = "1 epochs"
    batch: int = 128
    final: bool = True  # at the end also what is only evaluated there, as the test set


@dataclass(frozen=True)
class CheckpointConfig:
    """How often (a duration), and how many of the last to keep beside the best."""

    every: str = "1 epochs"
    keep: int = 2


@dataclass(frozen=True)
class HardwareConfig:
    """Where it runs; may change processes, precision and accumulation, never the science."""

    device: str = "auto"
    processes: int | str = "auto"  # on all nodes together
    nodes: int = 1
    precision: str = "fp32"
    compile: bool = False
    channels_last: bool = False
    tf32: bool = False
    deterministic: bool = False
    threads: int | str = "auto"
    data_workers: int = 0
    tflops: float = 1.0  # sustained, per process: what estimates of hours rest on
    timeout_s: float = 600.0  # of a collective operation
    max_restarts: int = 3


@dataclass(frozen=True)
class ClusterConfig:
    """Who starts a run, this call or Slurm, and what Slurm is asked for; null is its default."""

    kind: str = "local"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: int = 1440  # minutes until a run is saved and queued again
    gpus_per_node: int | str = "auto"  # one for each process on a GPU
    cpus_per_node: int | str = "auto"  # one for each process and each of its data workers
    mem: str | None = None  # of a node, "64G"
    array_parallelism: int = 8  # jobs at once where many are submitted
    requeue: bool = True  # a run that was stopped before its end
    signal_before_s: int = 120  # before the end of `time`: to save a checkpoint
    python: str | None = None  # the interpreter there, where it is not this one
    setup: list[str] = field(default_factory=list)  # shell commands before the run
    options: dict[str, Any] = field(default_factory=dict)  # further ones of sbatch


@dataclass(frozen=True)
class TrackingConfig:
    """W&B ("off", "offline", "online", "auto") and how often a row is logged."""

    wandb: str = "off"
    project: str = "novograd-repro"
    entity: str | None = None
    log_every: str = "10 steps"


@dataclass(frozen=True)
class PathsConfig:
    """Folders, absolute or relative to where the launcher is called."""

    data: str = "data"
    outputs: str = "outputs"
    records: str = "results/runs"


@dataclass(frozen=True)
class RunConfig:
    """One run, complete."""

    experiment: str
    scale: str
    seed: int
    task: TaskConfig
    model: dict[str, Any]
    data: dict[str, Any]
    budget: str
    batch: BatchConfig
    optimizer: dict[str, Any]
    schedule: ScheduleConfig
    init_gain: float = 1.0  # what initial weights are multiplied with
    decay: DecayConfig = field(default_factory=DecayConfig)
    gradient: GradientConfig = field(default_factory=GradientConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)


# Left out of the fingerprint.
NOT_SCIENCE = ("hardware", "tracking", "cluster", "paths", "checkpoint.keep")


class ConfigProblem(Exception):
    """A configuration that can't be run; the message has one line per problem."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        count = f"{len(problems)} problems" if len(problems) > 1 else "1 problem"
        lines = "\n".join(f"  - {problem}" for problem in problems)
        super().__init__(f"{count} in the configuration:\n{lines}")


def read_config(raw: Any) -> RunConfig:
    """A RunConfig from nested dicts; raises ConfigProblem with everything that is wrong."""
    problems: list[str] = []
    config = read_dataclass(RunConfig, raw, "", problems)
    if config is not None and not problems:
        problems += check_values(config)
    if problems or config is None:
        raise ConfigProblem(problems)
    return config  # type: ignore[no-any-return]


def read_dataclass(kind: type, raw: Any, where: str, problems: list[str]) -> Any:
    """An instance, or None after adding to `problems`; `where` is the dotted path so far."""
    if not isinstance(raw, dict):
        problems.append(f"{where or 'the configuration'} must be a mapping, not {raw!r}")
        return None
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in raw:
        if key not in fields:
            problems.append(f"{_join(where, key)} is not a known key{did_you_mean(key, fields)}")
    values: dict[str, Any] = {}
    before = len(problems)
    for name, f in fields.items():
        if name in raw:
            values[name] = _read_value(hints[name], raw[name], _join(where, name), problems)
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            problems.append(f"{_join(where, name)} is missing")
    return kind(**values) if len(problems) == before else None


def did_you_mean(word: Any, known: typing.Iterable[str]) -> str:
    """A hint to the closest known word, or the list of all."""
    names = list(known)
    close = difflib.get_close_matches(str(word), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names)}"


def _join(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def _read_value(hint: Any, raw: Any, where: str, problems: list[str]) -> Any:
    if dataclasses.is_dataclass(hint):
        return read_dataclass(typing.cast(type, hint), raw, where, problems)
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for kind in allowed:
        ok, value = _fits(kind, raw)
        if ok:
            return value
    names = " or ".join(_name(kind) for kind in allowed)
    problems.append(f"{where} must be {names}, not {raw!r}")
    return None


def _fits(kind: Any, raw: Any) -> tuple[bool, Any]:
    """Whether a YAML value is of a kind, and the value: 1 may stand for 1.0, never True for 1."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is type(None):
        return raw is None, None
    if kind is float:
        ok = isinstance(raw, int | float) and not isinstance(raw, bool)
        return ok, float(raw) if ok else None
    if kind is int:
        return isinstance(raw, int) and not isinstance(raw, bool), raw
    if origin is list:
        if not isinstance(raw, list):
            return False, None
        items = [_fits(arguments[0], item) for item in raw]
        return all(ok for ok, _ in items), [item for _, item in items]
    if origin is dict:
        return isinstance(raw, dict), raw
    return isinstance(raw, kind), raw


def _name(kind: Any) -> str:
    names = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}
    if kind is type(None):
        return "null"
    if typing.get_origin(kind) is list:
        return "a list"
    return names.get(kind, "a mapping")


def check_values(config: RunConfig) -> list[str]:
    """What types can't say: ranges and names."""
    problems = []

    def one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
        if value not in known:
            problems.append(f"{name} must be one of {', '.join(known)}, not {value!r}")

    def at_least(name: str, value: float, least: float, *, strictly: bool = False) -> None:
        bad = not math.isfinite(value) or value < least or (strictly and value == least)
        if bad:
            words = f"more than {least:g}" if strictly else f"at least {least:g}"
            problems.append(f"{name} must be finite and {words}, not {value!r}")

    hardware = config.hardware
    one_of("scale", config.scale, SCALES)
    one_of("decay.apply_to", config.decay.apply_to, ("all", "matrices"))
    one_of("hardware.device", hardware.device, DEVICES)
    one_of("hardware.precision", hardware.precision, PRECISIONS)
    one_of("tracking.wandb", config.tracking.wandb, ("off", "offline", "online", "auto"))
    one_of("cluster.kind", config.cluster.kind, CLUSTERS)

    def number_or_auto(name: str, value: int | str, least: int) -> None:
        if isinstance(value, int):
            at_least(name, value, least)
        elif value != "auto":
            problems.append(f"{name} must be a number or 'auto', not {value!r}")

    number_or_auto("hardware.processes", hardware.processes, 1)
    number_or_auto("hardware.threads", hardware.threads, 1)
    number_or_auto("cluster.gpus_per_node", config.cluster.gpus_per_node, 0)
    number_or_auto("cluster.cpus_per_node", config.cluster.cpus_per_node, 1)
    at_least("hardware.nodes", hardware.nodes, 1)
    if isinstance(hardware.processes, int) and hardware.nodes > 0:
        each, rest = divmod(hardware.processes, hardware.nodes)
        if rest:
            problems.append(
                f"hardware.processes={hardware.processes} do not divide among hardware.nodes="
                f"{hardware.nodes}: {hardware.processes} = {each} × {hardware.nodes} + {rest}"
            )
    at_least("seed", config.seed, 0)
    at_least("init_gain", config.init_gain, 0, strictly=True)
    at_least("batch.global_size", config.batch.global_size, 1)
    at_least("batch.micro", config.batch.micro, 1)
    at_least("evaluation.batch", config.evaluation.batch, 1)
    at_least("checkpoint.keep", config.checkpoint.keep, 1)
    at_least("hardware.data_workers", hardware.data_workers, 0)
    at_least("hardware.tflops", hardware.tflops, 0, strictly=True)
    at_least("hardware.timeout_s", hardware.timeout_s, 0, strictly=True)
    at_least("hardware.max_restarts", hardware.max_restarts, 0)
    cluster = config.cluster
    at_least("cluster.time", cluster.time, 1)
    at_least("cluster.array_parallelism", cluster.array_parallelism, 1)
    at_least("cluster.signal_before_s", cluster.signal_before_s, 1)
    if cluster.signal_before_s >= 60 * cluster.time:
        problems.append(
            f"cluster.signal_before_s={cluster.signal_before_s} leaves nothing of "
            f"cluster.time={cluster.time} min = {60 * cluster.time} s"
        )
    if config.gradient.clip_norm is not None:
        at_least("gradient.clip_norm", config.gradient.clip_norm, 0, strictly=True)
    return problems
