"""Everything that can be wrong with a configuration before its data are read, in one pass."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from engine.config import ConfigProblem, RunConfig, check_combinations
from engine.plan import batch_problems, duration_problems, schedule_problems
from engine.schema import did_you_mean, read_dataclass, read_fields
from launch.hardware import resolve_for, total_memory
from launch.torch_compiler import torch_compiler_unloaded, unchanged_meta_tensors
from tasks.base import Task
from tasks.catalog import TASKS, task_class

if TYPE_CHECKING:  # torch is imported when there is something for it to check
    from torch import nn

_checked_models: dict[str, nn.Module] = {}  # on the meta device, by their options


def validate(raw: Any, problems: list[str], *, must_exist: bool = True) -> RunConfig | None:
    """The configuration, or None after adding to `problems`.

    First types, ranges and names; then, for the sections that are right, what the task, the
    optimizer and the machine (unless it need not exist) can't do with them.
    """
    from engine.optimizer import make_transforms

    before = len(problems)
    values = read_fields(RunConfig, raw, "", problems)
    problems += check_combinations(values)
    if "task" in values:
        _check_task(values, problems)
    if "optimizer" in values:
        rules = values["decay"].rules if "decay" in values else {}
        _check_optimizer(values["optimizer"], rules, problems)
        if "schedule" in values and "lr" in values["optimizer"]:
            problems += schedule_problems(values["schedule"], values["optimizer"]["lr"])
    if "gradient" in values:
        try:
            make_transforms(values["gradient"])
        except (TypeError, ValueError) as problem:
            problems.append(f"gradient: {problem}")
    if {"batch", "hardware", "cluster"} <= set(values):
        hardware, batch, cluster = values["hardware"], values["batch"], values["cluster"]
        processes = hardware.processes
        try:
            resolved = resolve_for(hardware, batch, cluster, must_exist=must_exist)
            processes = resolved.processes
        except ConfigProblem as problem:
            problems += problem.problems
        problems += batch_problems(batch, processes if isinstance(processes, int) else 1)
    return RunConfig(**values) if len(problems) == before else None


def _check_task(values: dict[str, Any], problems: list[str]) -> None:
    name = values["task"].name
    if name not in TASKS:
        problems.append(f"task.name={name} does not exist{did_you_mean(name, TASKS)}")
        return
    kind = task_class(name)
    hardware = values.get("hardware")
    if hardware and hardware.checkpoint_activations and not kind.can_checkpoint_activations:
        problems.append(f"hardware.checkpoint_activations=true: {name} has no such option")
    for section, options in (("model", kind.ModelOptions), ("data", kind.DataOptions)):
        if section in values:
            read_dataclass(options, values[section], section, problems)
    problems += duration_problems(values, kind.unit)


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
    """Builds the model and its optimizer on the meta device, where they take no memory.

    ConfigProblem where that fails, or where the weights and their gradients alone are more than
    this machine has.
    """
    import torch

    from engine.optimizer import build_optimizer_of

    key = json.dumps([config.task.name, config.model, config.data], sort_keys=True, default=str)
    try:
        if key not in _checked_models:
            with torch.device("meta"), unchanged_meta_tensors():
                _checked_models[key] = task.build_model()
        model = _checked_models[key]
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise ConfigProblem([f"model: no model can be built with these options: {reason}"]) from e
    try:
        build_optimizer_of(config, model)
    except ValueError as problem:
        raise ConfigProblem([f"decay.rules: {problem}"]) from problem
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    if weights == 0:
        raise ConfigProblem(["model: a model with these options has no weights"])
    if config.hardware.device == "cpu" and 2 * weights > total_memory():
        raise ConfigProblem(
            [
                f"model: weights and gradients take {2 * weights / 1e9:,.0f} GB, and this machine "
                f"has {total_memory() / 1e9:,.0f} GB of memory"
            ]
        )
