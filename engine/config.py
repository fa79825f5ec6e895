"""The schema of a run: everything that `run.yaml` may hold, with types and ranges.

Plain dataclasses. The launcher reads what Hydra composed, the workers read the frozen file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from engine.provenance import fingerprint
from engine.schema import OneOf, Within, read_fields
from optim.schedules import FLOORS, SHAPES, WARMUPS

SCALES = ("paper", "mini", "short", "smoke")
WANDB_MODES = ("off", "offline", "online", "auto")


AUTO = OneOf(("auto",))
Count = Annotated[int, Within(1)]
CountOrAuto = Annotated[int | str, Within(1), AUTO]


@dataclass(frozen=True)
class TaskConfig:
    """Which task."""

    name: str


@dataclass(frozen=True)
class BatchConfig:
    """Units of one step over all processes, and of one micro-batch: both are science."""

    global_size: Count
    micro: Count


@dataclass(frozen=True)
class DecayConfig:
    """Which parameters decay: "all" or "matrices", and rules {pattern: {option: value}}.

    A rule's options are the optimizer's own; its lr follows the schedule too.
    """

    apply_to: Annotated[str, OneOf(("all", "matrices"))] = "all"
    rules: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over the steps; warmup is a duration ("500 steps", "5 %")."""

    shape: Annotated[str, OneOf(SHAPES)]
    warmup: str = "0 steps"
    warmup_from: Annotated[str, OneOf(WARMUPS)] = "zero"
    power: Annotated[float, Within(0)] = 2.0
    floor: Annotated[float, Within(0)] = 0.0
    floor_mode: Annotated[str, OneOf(FLOORS)] = "add"
    start: Annotated[float, Within(0)] = 0.0  # the learning rate at which a warm-up begins
    milestones: list[str] = field(default_factory=list)  # durations: where a staircase steps down
    factor: Annotated[float, Within(0)] = 0.1


@dataclass(frozen=True)
class GradientConfig:
    """What happens to gradients before the step; larc holds Larc's options."""

    clip_norm: Annotated[float | None, Within(0, above=True)] = None
    larc: dict[str, Any] | None = None
    decay_before_larc: bool = False  # L2 of SGD and Adam becomes part of what is clipped and scaled


@dataclass(frozen=True)
class EvaluationConfig:
    """How often (a duration) and with how many examples at a time."""

    every: str = "1 epochs"
    batch: Count = 128
    final: bool = True  # whether the end also evaluates what is only evaluated there: the test set


@dataclass(frozen=True)
class CheckpointConfig:
    """How often (a duration), and how many of the last to keep beside the best."""

    every: str = "1 epochs"
    keep: Count = 2


@dataclass(frozen=True)
class HardwareConfig:
    """Where it runs; may change processes, precision and accumulation, never the science."""

    device: Annotated[str, OneOf(("auto", "cpu", "cuda"))] = "auto"
    processes: CountOrAuto = "auto"  # on all nodes together
    nodes: Count = 1
    precision: Annotated[str, OneOf(("auto", "fp32", "bf16", "fp16", "fp64"))] = "fp32"
    compile: bool = False  # the models, by torch.compile
    checkpoint_activations: bool = False  # less memory for a third more work (LibriSpeech)
    channels_last: bool = False
    tf32: bool = False
    deterministic: bool = False
    profile: str | None = None  # START:STOP, steps that are traced into the run's folder
    threads: CountOrAuto = "auto"  # of each process
    data_workers: Annotated[int | str, Within(0, 1024), AUTO] = 0  # of each process
    # Sustained by a process, for estimates; "auto": assumed by task and device.
    tflops: Annotated[float | str, Within(0, above=True), AUTO] = 1.0
    timeout_s: Annotated[float, Within(1, 1e6)] = 600.0  # of a collective operation
    max_restarts: Annotated[int, Within(0)] = 3


@dataclass(frozen=True)
class ClusterConfig:
    """What starts a run, this command or Slurm, and what is requested; null is Slurm's default."""

    kind: Annotated[str, OneOf(("local", "slurm"))] = "local"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: Count = 1440  # minutes until a run is saved and queued again
    gpus_per_node: Annotated[int | str, Within(0), AUTO] = "auto"  # one for each process on a GPU
    cpus_per_node: CountOrAuto = "auto"  # one for each process and each of its data workers
    mem: str | None = None  # of a node, "64G"
    array_parallelism: Count = 8  # jobs at once where many are submitted
    requeue: bool = True  # a run that was stopped before its end
    signal_before_s: Count = 120  # before the end of `time`: to save a checkpoint
    python: str | None = None  # the interpreter there, where it is not this one
    setup: list[str] = field(default_factory=list)  # shell commands before the run
    options: dict[str, Any] = field(default_factory=dict)  # further ones of sbatch


@dataclass(frozen=True)
class TrackingConfig:
    """Where curves go besides metrics.jsonl, and how often a row is logged."""

    wandb: Annotated[str, OneOf(WANDB_MODES)] = "off"  # "auto": online where a key is configured
    project: str = "novograd-repro"
    entity: str | None = None
    tags: list[str] = field(default_factory=list)  # further ones, of W&B
    sweep: str | None = None  # the sweep or study that the run belongs to: W&B's group
    artifacts: Annotated[str, OneOf(("none", "best", "all"))] = "none"  # checkpoints W&B keeps
    tensorboard: bool = False  # event files in the run's folder
    log_every: str = "10 steps"
    # Optimizer telemetry: a duration, rounded up to logged steps; null is off.
    optimizer_every: str | None = None
    optimizer_by: Annotated[str, OneOf(("layer", "tensor"))] = "layer"


@dataclass(frozen=True)
class PathsConfig:
    """Folders, absolute or relative to the current folder."""

    data: str = "data"
    outputs: str = "outputs"


@dataclass(frozen=True)
class RunConfig:
    """One run, complete."""

    experiment: str
    scale: Annotated[str, OneOf(SCALES)]
    seed: Annotated[int, Within(0)]
    task: TaskConfig
    model: dict[str, Any]
    data: dict[str, Any]
    budget: str
    batch: BatchConfig
    optimizer: dict[str, Any]
    schedule: ScheduleConfig
    init_gain: Annotated[float, Within(0, above=True)] = 1.0  # multiplies initial weights
    init_from: str | None = None  # an export or a checkpoint whose weights the run begins with
    init_sha256: str | None = None  # of these weights; found where it is not given
    lr_per_tensor: Annotated[str, OneOf(("uniform", "sqrt_size"))] = (
        "uniform"  # sqrt_size: × √numel
    )
    decay: DecayConfig = field(default_factory=DecayConfig)
    gradient: GradientConfig = field(default_factory=GradientConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    hardware: HardwareConfig = field(default_factory=HardwareConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    paths: PathsConfig = field(default_factory=PathsConfig)


# Left out of the fingerprint.
NOT_SCIENCE = (
    "hardware",
    "tracking",
    "cluster",
    "paths",
    "checkpoint.keep",
    "init_from",
    "optimizer.fused",
)
# Options that were added after runs had been recorded, with their defaults: a run that does not
# use one keeps its fingerprint.
ADDED_LATER: dict[str, Any] = {
    "data.batching": "similar",
    "data.filter_by": "recorded",
    "data.masks_over": "utterance",
    "data.preprocessing": "torchvision",
    "data.word_ranks": [],
    "gradient.decay_before_larc": False,
    "init_sha256": None,
    "lr_per_tensor": "uniform",
}


# Scales by the name that they had when runs of them were recorded: their fingerprints keep it.
RENAMED_SCALES = {"short": "mini"}


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
    values = read_fields(RunConfig, raw, "", problems)
    problems += check_combinations(values)
    if problems:
        raise ConfigProblem(problems)
    return RunConfig(**values)


def check_combinations(values: dict[str, Any]) -> list[str]:
    """What is wrong between two values of one section."""
    problems = []
    hardware, cluster = values.get("hardware"), values.get("cluster")
    if hardware is not None and hardware.profile is not None:
        start, _, stop = hardware.profile.partition(":")
        if not (start.isdecimal() and stop.isdecimal() and int(start) < int(stop)):
            given = f"not {hardware.profile!r}"
            problems.append(f"hardware.profile must be START:STOP, such as 10:15, {given}")
    if hardware is not None and isinstance(hardware.processes, int):
        each, rest = divmod(hardware.processes, hardware.nodes)
        if rest:
            problems.append(
                f"hardware.processes={hardware.processes} do not divide among hardware.nodes="
                f"{hardware.nodes}: {hardware.processes} = {each} × {hardware.nodes} + {rest}"
            )
    if cluster is not None and cluster.signal_before_s >= 60 * cluster.time:
        problems.append(
            f"cluster.signal_before_s={cluster.signal_before_s} leaves nothing of "
            f"cluster.time={cluster.time} min = {60 * cluster.time} s"
        )
    if values.get("init_from") is not None and values.get("init_gain") not in (None, 1.0):
        problems.append("init_gain multiplies random weights: with init_from it must be 1")
    if values.get("init_from") is None and values.get("init_sha256") is not None:
        problems.append("init_sha256 is the checksum of init_from's weights, which is missing")
    return problems


def recipe_fingerprint(config: RunConfig, *, leave_out: Sequence[str] = ("seed",)) -> str:
    """The identity of a recipe: of everything that may change a result, and of nothing else.

    By default the same for all seeds.
    """
    raw = dataclasses.asdict(config)
    raw["scale"] = RENAMED_SCALES.get(config.scale, config.scale)
    unused = [key for key, default in ADDED_LATER.items() if _look_up(raw, key) == default]
    return fingerprint(raw, (*NOT_SCIENCE, *unused, *leave_out))


def _look_up(nested: Any, key: str) -> Any:
    for part in key.split("."):
        nested = nested.get(part) if isinstance(nested, dict) else None
    return nested
