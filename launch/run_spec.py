"""A run spec: a validated and planned run, with its id and its folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.config import ConfigProblem, PathsConfig, RunConfig, read_config, recipe_fingerprint
from engine.plan import Plan, make_plan, micro_batches_of
from engine.records import RECORD_FILE, RecordError, RunFile, RunRecord, read_record, read_status
from engine.schema import read_dataclass
from launch.compose import Origin, collect, compose, options_of
from launch.config_files import ROOT, header_of, text_of
from launch.device_check import describe_device
from launch.hardware import check_shared_memory, resolve_for, visible_gpus
from launch.initial import check_initial_weights, initial_model_of, with_initial_model
from launch.paper_row import paper_row
from launch.validate import check_model, validate
from tasks.base import Context, Task
from tasks.catalog import task_class

RECIPE_SECTIONS = ("budget", "batch", "optimizer", "schedule", "gradient", "decay")


@dataclass(frozen=True)
class RunSpec:
    """A validated run: everything is known but the result."""

    config: RunConfig
    plan: Plan
    task: Any
    run_id: str
    fingerprint: str
    origin: Origin = field(default_factory=Origin)

    @property
    def folder(self) -> Path:
        return Path(self.config.paths.outputs) / self.run_id

    @property
    def record_path(self) -> Path:
        """Where the run leaves its record."""
        return self.folder / RECORD_FILE

    @property
    def is_done(self) -> bool:
        """Whether the run has finished here; published records are of other people's runs."""
        return read_status(self.folder).is_finished and self.record is not None

    @property
    def record(self) -> RunRecord | None:
        """What the run has left; None if it is not there, or damaged: then launch the run again."""
        with suppress(RecordError):
            return read_record(self.record_path)
        return None

    def freeze(self) -> RunFile:
        """What run.yaml will have, which is all that the workers read."""
        name, own = f"experiment/{self.config.experiment}", self.origin.user_configs
        return RunFile(
            self.run_id,
            self.fingerprint,
            asdict(self.config),
            notes=header_of(own.get(f"{name}.yaml") or text_of(name)),
            paper=paper_row(self.config.experiment),
            changed_by_scale=self.origin.changed_by_scale,
            user_configs=own,
        )


def make_run_spec(overrides: list[str], *, need_data: bool = True) -> RunSpec:
    """From the command line to a run spec; ConfigProblem or DataProblem where it can't be run.

    A plan needs no data where the configuration has the number of examples, and no GPUs either.
    """
    config, origin = read_overrides(overrides, must_exist=need_data)
    return complete_run_spec(config, origin, need_data=need_data)


def read_overrides(
    overrides: list[str],
    *,
    must_exist: bool = True,
    meanwhile: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[RunConfig, Origin]:
    """The validated configuration and its origin; ConfigProblem lists all problems.

    `meanwhile` is called with what was composed without problems, before it is validated.
    """
    check_packages()
    problems: list[str] = []
    composed = collect(overrides, problems)
    if composed is not None:
        raw, origin = composed
        if meanwhile is not None and not problems:
            meanwhile(raw)
        config = validate(raw, problems, must_exist=must_exist)
        if config is not None and not problems:
            return config, origin
    raise ConfigProblem(list(dict.fromkeys(problems)))


def complete_run_spec(
    config: RunConfig, origin: Origin | None = None, *, need_data: bool = True
) -> RunSpec:
    """A run spec for this machine: `auto` resolved, the model checked, data prepared, planned."""
    paths = {name: str(Path(given).absolute()) for name, given in asdict(config.paths).items()}
    hardware = resolve_for(config.hardware, config.batch, config.cluster, must_exist=need_data)
    config = replace(config, hardware=hardware, paths=PathsConfig(**paths))
    if config.init_from is not None:
        config = with_initial_model(config)
    processes = int(hardware.processes)
    task = make_task(config, micro_batches_of(config, processes))
    check_model(config, task)
    if config.init_from is not None:
        check_initial_weights(config, task)
    if need_data:
        task.prepare_data()
        if config.cluster.kind == "local":
            check_shared_memory(config, task)
    plan = make_plan(config, task.unit, task.steps_per_epoch, processes)
    mark = recipe_fingerprint(config)
    run_id = f"{config.experiment}-{mark}-s{config.seed}"
    return RunSpec(config, plan, task, run_id, mark, origin or Origin())


def make_task(config: RunConfig, micro_batches: int) -> Task:
    """The task of a configuration; `micro_batches` is their number in one step."""
    kind = task_class(config.task.name)
    problems: list[str] = []
    model = read_dataclass(kind.ModelOptions, config.model, "model", problems)
    data = read_dataclass(kind.DataOptions, config.data, "data", problems)
    if problems:
        raise ConfigProblem(problems)
    known = config.hardware.data_workers != "auto"  # or it is chosen on the node that runs it
    context = Context(
        seed=config.seed,
        micro=config.batch.micro,
        micro_batches=micro_batches,
        eval_batch=config.evaluation.batch,
        data_workers=int(config.hardware.data_workers) if known else 0,
        data_root=Path(config.paths.data),
        checkpoint_activations=config.hardware.checkpoint_activations,
    )
    task = kind(model, data, context)
    if config.init_from is not None:
        task.use_model_files(initial_model_of(config).files)
    return task


def check_packages() -> None:
    """Other distributions use the names `optim` and `tasks`, too."""
    import optim
    import tasks

    for module in (optim, tasks):
        if not Path(module.__file__ or "").is_relative_to(ROOT):
            raise ConfigProblem(
                [f"{module.__name__} was imported from elsewhere: run from the checkout's root"]
            )


def recipe_fingerprints(wanted: Iterable[tuple[str, str]]) -> set[str]:
    """Of experiments at scales, as they are configured now; one that is gone has none.

    Needs neither data nor a device.
    """
    known = set(options_of("experiment"))
    return {
        recipe_fingerprint(read_config(compose([f"experiment={experiment}", f"scale={scale}"])))
        for experiment, scale in sorted(set(wanted))
        if experiment in known
    }


def describe(spec: RunSpec, *, share: bool = False) -> str:
    """What will be run, in some lines; on a `share` of the machine's GPUs, or on all of them."""
    p, c = spec.plan, spec.config
    where = describe_device(c)
    is_local = c.cluster.kind == "local" and c.hardware.nodes == 1
    if c.hardware.device == "cuda" and is_local and not share:
        if p.processes < (visible := len(visible_gpus())):
            where += f" (of {visible} GPUs: a step has {p.micro_batches} micro-batches)"
    about = spec.task.about_data()
    lines = [
        f"run        {spec.run_id}  (scale {c.scale})",
        f"batch      {p.global_batch:,} {p.unit}s = {p.processes} × {p.accumulation} "
        f"accumulated × {p.micro}",
        f"length     {p.steps:,} steps = {p.epochs:,.4g} epochs of {p.steps_per_epoch:,}, "
        f"of which {p.warmup:,} warm-up",
        f"hardware   {where}",
    ]
    if about:
        lines.append(f"data       {about}")
    if changed := describe_changes(spec.origin.changed_by_scale):
        lines.append(f"scale      {changed}")
    return "\n".join(lines)


def describe_changes(changed: dict[str, list[Any]]) -> str:
    """What a scale changed: the recipe's values one by one, models and data as a count."""
    recipe = {k: v for k, v in changed.items() if k.split(".")[0] in RECIPE_SECTIONS}
    parts = [f"{key} {paper} → {used}" for key, (paper, used) in recipe.items()]
    others = [key for key in changed if key not in recipe]
    for section in dict.fromkeys(key.split(".")[0] for key in others):
        number = sum(key.split(".")[0] == section for key in others)
        parts.append(f"{number} of {section}.*")
    return ", ".join(parts)
