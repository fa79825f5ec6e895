"""Everything that can be wrong with a configuration before its data are read, in one pass."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.config import ConfigProblem, RunConfig, check_combinations
from engine.plan import batch_problems, duration_problems, schedule_problems
from engine.schema import did_you_mean, read_dataclass, read_fields
from launch.hardware import resolve_for, total_memory
from launch.torch_compiler import torch_compiler_unloaded, unchanged_meta_tensors
from tasks.base import Context, Task
from tasks.catalog import TASKS, task_class

if TYPE_CHECKING:  # torch is imported when there is something for it to check
    from torch import nn

_checked_models: dict[str, nn.Module] = {}  # on the meta device, by their options


def validate(raw: Any, problems: list[str], *, must_exist: bool = True) -> RunConfig | None:
    """The configuration, or None after adding to `problems`.

    First types, ranges and names; then, for the sections that are right, what the task, the
    optimizer and the machine (unless it need not exist) can't do with them. Where there are
    problems the model is built here, so that one message has those of the model, too.
    """
    from engine.optimizer import make_transforms

    before = len(problems)
    values = read_fields(RunConfig, raw, "", problems)
    problems += check_combinations(values)
    task = _check_task(values, problems) if "task" in values else None
    if "optimizer" in values:
        rules = values["decay"].rules if "decay" in values else {}
        _check_optimizer(values["optimizer"], rules, problems)
        if "lr" in values["optimizer"]:
            problems += schedule_problems(values.get("schedule"), values["optimizer"]["lr"])
    if "gradient" in values:
        try:
            make_transforms(values["gradient"])
        except (TypeError, ValueError) as problem:
            problems.append(f"gradient: {problem}")
    device = ""
    if {"batch", "hardware", "cluster"} <= set(values):
        hardware, batch, cluster = values["hardware"], values["batch"], values["cluster"]
        processes = hardware.processes
        try:
            resolved = resolve_for(hardware, batch, cluster, must_exist=must_exist)
            processes, device = resolved.processes, resolved.device
        except ConfigProblem as problem:
            problems += problem.problems
        problems += batch_problems(batch, processes if isinstance(processes, int) else 1)
    config = RunConfig(**values) if len(problems) == before else None
    if problems and task is not None and values.get("init_from") is None:
        try:
            _build_on_meta(task, device)
        except ConfigProblem as problem:
            problems += problem.problems
    return config


def _check_task(values: dict[str, Any], problems: list[str]) -> Task | None:
    """The task, for building its model; None where its options do not allow that."""
    name = values["task"].name
    if name not in TASKS:
        problems.append(f"task.name={name} does not exist{did_you_mean(name, TASKS)}")
        return None
    kind = task_class(name)
    hardware = values.get("hardware")
    if hardware and hardware.checkpoint_activations and not kind.can_checkpoint_activations:
        problems.append(f"hardware.checkpoint_activations=true: {name} has no such option")
    problems += duration_problems(values, kind.unit)
    before, model, data = len(problems), None, None
    if "model" in values:
        model = read_dataclass(kind.ModelOptions, values["model"], "model", problems)
    is_model_right = model is not None and len(problems) == before
    if "data" in values:
        data = read_dataclass(kind.DataOptions, values["data"], "data", problems)
    if not is_model_right or data is None:
        return None
    return kind(model, data, Context(0, 1, 1, 1, 0, Path()))


@torch_compiler_unloaded()
def _check_optimizer(
    optimizer: dict[str, Any], rules: dict[str, dict[str, Any]], problems: list[str]
) -> None:
    """Its name and each option alone, so that one bad option does not hide another."""
    import torch

    from engine.optimizer import take_fused
    from optim.factory import KINDS, build_optimizer

    options = dict(optimizer)
    name = str(options.pop("name", None))
    if name not in KINDS:
        problems.append(f"optimizer.name={name} does not exist{did_you_mean(name, KINDS)}")
        return
    try:
        take_fused(options, name)
    except ValueError as problem:
        problems.append(f"optimizer.fused: {problem}")
    if "lr" not in options:
        problems.append(f"optimizer.lr is missing: {name} needs a learning rate")
    for where, given in [
        ("optimizer", options),
        *((f"decay.rules.{p}", r) for p, r in rules.items()),
    ]:
        for key, value in given.items():
            if (where, key) == ("optimizer", "lr"):  # schedule_problems checks it
                continue
            if key not in KINDS[name].options:
                hint = did_you_mean(key, KINDS[name].options)
                problems.append(f"{where}.{key} is not an option of {name}{hint}")
                continue
            plain = tuple(value) if isinstance(value, list) else value
            known: dict[str, Any] = {"lr": 0.1} | {key: plain}
            try:
                build_optimizer(name, [torch.nn.Parameter(torch.zeros(2, 2))], **known)
            except ValueError as problem:
                problems.append(f"{where}.{key}: {str(problem).removeprefix(f'{name}: ')}")


@torch_compiler_unloaded()
def check_model(config: RunConfig, task: Task) -> None:
    """Builds the model and its optimizer on the meta device; ConfigProblem where that fails."""
    from engine.optimizer import build_optimizer_of

    model = _build_on_meta(task, config.hardware.device)
    try:
        build_optimizer_of(config, model)
    except ValueError as problem:
        raise ConfigProblem([f"decay.rules: {problem}"]) from problem


def _build_on_meta(task: Task, device: str) -> nn.Module:
    """The model of a task on the meta device, where it takes no memory.

    ConfigProblem where it can't be built, or where the weights and their gradients alone are more
    than this machine has.
    """
    import torch

    options = [type(task).__name__, asdict(task.model_options), asdict(task.data_options)]
    key = json.dumps(options, sort_keys=True, default=str)
    try:
        if key not in _checked_models:
            with torch.device("meta"), unchanged_meta_tensors():
                _checked_models[key] = task.build_model()
        model = _checked_models[key]
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise ConfigProblem([f"model: no model can be built with these options: {reason}"]) from e
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    if weights == 0:
        raise ConfigProblem(["model: a model with these options has no weights"])
    if device == "cpu" and 2 * weights > total_memory():
        raise ConfigProblem(
            [
                f"model: weights and gradients take {2 * weights / 1e9:,.0f} GB, and this machine "
                f"has {total_memory() / 1e9:,.0f} GB of memory"
            ]
        )
    return model
