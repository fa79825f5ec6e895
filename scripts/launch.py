"""`python -m scripts.launch experiment=imagenet/novograd_100ep [scale=smoke] [key=value …]`.

Composes the configuration (the only file that knows Hydra), validates all of it, plans, freezes
`outputs/<run id>/run.yaml`, starts the workers with torchrun and waits for them. With
`cluster=slurm` the run is submitted instead. With `hardware.nodes=2` the same command is called on
each node, with NODE_RANK (from 0), MASTER_ADDR and MASTER_PORT in its environment.

Exit status: 0 finished · 1 failed · 2 bad configuration, data or folder · 3 no good checkpoint ·
4 the run's folder is in use · 5 diverged · 75 stopped on request, run again to go on.
"""

from __future__ import annotations

import copy
import os
import sys
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from engine.config import (
    NOT_SCIENCE,
    ConfigProblem,
    HardwareConfig,
    PathsConfig,
    RunConfig,
    did_you_mean,
    read_config,
    read_dataclass,
)
from engine.distributed import Meeting, MeetingProblem, Node, NodeLost
from engine.plan import make_plan, slots_of
from engine.scaling import Multiply, multiply
from scripts.supervise import EXIT, ROOT, Prepared, Requests, run
from scripts.train import make_task, read_task_options

CONFIGS = ROOT / "configs"


def main(arguments: list[str] | None = None) -> int:
    """The launcher; never a traceback for what a user can get wrong."""
    from tasks.base import DataProblem

    try:
        _check_that_rooms_are_ours()
        config = read_config(compose(sys.argv[1:] if arguments is None else arguments))
        if config.cluster.kind == "slurm":
            from scripts.cluster import submit

            prepared = complete(config)
            print(describe(prepared), flush=True)
            submit([prepared], config.cluster)
            return 0
        node = Node.of_environment(config.hardware.nodes)
    except (ConfigProblem, DataProblem) as problem:
        print(problem, file=sys.stderr)
        return 2
    return launch(config, node)


def launch(config: RunConfig, node: Node, *, patient: bool = False) -> int:
    """This node's part of a run; the exit status is the same on every node."""
    try:
        with (
            Requests(patient=patient) as requests,
            Meeting(node, config.hardware.timeout_s) as all_,
        ):
            prepared = _complete_in_turn(config, all_)
            if prepared is None:
                return 2
            if node.is_first:
                print(describe(prepared), flush=True)
            return run(prepared, all_, requests)
    except MeetingProblem as problem:
        print(problem, file=sys.stderr)
        return 2
    except NodeLost as lost:
        print(f"{node}: {lost}", file=sys.stderr)
        return lost.status or EXIT["failed"]
    except SystemExit as stopped:  # on request
        return int(stopped.code or 0)


def _complete_in_turn(config: RunConfig, meeting: Meeting) -> Prepared | None:
    """First where run and data are at home, so that what is made once is made once."""
    from tasks.base import DataProblem

    if not meeting.is_first and meeting.exchange("")[0]:
        return None
    prepared, problem = None, ""
    try:
        prepared = complete(config)
    except (ConfigProblem, DataProblem) as found:
        problem = str(found)
        print(f"{meeting.node}: {problem}" if meeting.node.count > 1 else problem, file=sys.stderr)
    if meeting.is_first and meeting.exchange(problem)[0]:
        return None
    return None if any(meeting.exchange(problem)) else prepared


def prepare(arguments: list[str], *, need_data: bool = True) -> Prepared:
    """From command-line words to a run; ConfigProblem or DataProblem if it can't be.

    A plan needs no data where the configuration says how much there is, and no GPUs either.
    """
    _check_that_rooms_are_ours()
    return complete(read_config(compose(arguments)), need_data=need_data)


def complete(config: RunConfig, *, need_data: bool = True) -> Prepared:
    """From a configuration to a run, as `prepare`."""
    from engine.provenance import fingerprint
    from tasks.catalog import TASKS, task_class

    paths = {name: str(Path(given).absolute()) for name, given in asdict(config.paths).items()}
    slots = config.batch.global_size // config.batch.micro
    if config.cluster.kind == "local":
        hardware = resolve_hardware(config.hardware, slots, must_exist=need_data)
    else:
        hardware = resolve_hardware(config.hardware, slots, gpus=gpus_per_node(config))
        hardware = replace(hardware, threads=config.hardware.threads)  # of the machine there
    config = replace(config, hardware=hardware, paths=PathsConfig(**paths))
    problems = _check_names(config, TASKS)
    if problems:
        raise ConfigProblem(problems)
    slots = slots_of(config, int(config.hardware.processes))
    task = make_task(task_class(config.task.name), config, slots)
    if need_data:
        task.check_data()
    plan = make_plan(config, task.unit, task.steps_per_epoch, int(config.hardware.processes))
    mark = fingerprint(asdict(config), (*NOT_SCIENCE, "seed"))  # the same for all seeds
    return Prepared(config, plan, task, f"{config.experiment}-{mark}-s{config.seed}", mark)


def compose(arguments: list[str]) -> dict[str, Any]:
    """Nested dicts from configs/ and the command line; raises with every problem found."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    problems: list[str] = []
    choices: dict[str, str] = {}
    values: list[Any] = []
    parser = OverridesParser.create()
    for word in arguments:
        try:
            override = parser.parse_override(word)
        except HydraException:
            problems.append(f"{word!r} can't be read: write key=value, without spaces around =")
            continue
        key = override.key_or_group
        if (CONFIGS / key).is_dir() and not override.is_delete():
            choice = str(override.value())
            problems += _check_choice(key, choice)
            choices[key] = choice
        else:
            values.append(override)
    if "experiment" not in choices:
        problems.append(f"experiment is missing; there are {', '.join(options_of('experiment'))}")
    if "scale" not in choices:
        choices["scale"] = default_scale()
    if problems:
        raise ConfigProblem(problems)
    raw = copy.deepcopy(_compose_groups(CONFIGS, tuple(choices.items())))
    raw |= {"experiment": choices["experiment"], "scale": choices["scale"]}
    # First what a scale makes of the recipe, then the user's own values, which stand as they are.
    factors = [v for v in values if v.key_or_group.split(".")[0] == "multiply"]
    for override in factors:
        _apply(raw, override, problems)
    by = read_dataclass(Multiply, raw.pop("multiply", {}), "multiply", problems)
    if by is not None:
        multiply(raw, by, problems)
    for override in values:
        if override not in factors:
            _apply(raw, override, problems)
    if problems:
        problems += _other_problems(raw)
        raise ConfigProblem(problems)
    return raw


@lru_cache(maxsize=64)  # a sweep composes the same groups again and again
def _compose_groups(configs: Path, choices: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """The files of some groups, put together and resolved."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        with initialize_config_dir(config_dir=str(configs), version_base="1.3"):
            composed = hydra_compose("run", [f"{k}={v}" for k, v in choices])
        raw: dict[str, Any] = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as problem:
        raise ConfigProblem([" ".join(str(problem).split())]) from problem
    return raw


def multirun_values(word: str) -> tuple[str, list[Any]]:
    """Key and values of a word as Hydra's multirun reads it: `seed=0,1`, `choice(…)`, `range(…)`.

    A plain word has one value, and one that removes a key has none.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    try:
        override = parser.parse_override(word)
        key = override.get_key_element()
        if override.is_delete():
            return key, []
        if not override.is_sweep_override():
            return key, [_plain(override.value())]
        texts = list(override.sweep_string_iterator())
        return key, [_plain(parser.parse_override(f"{key}={text}").value()) for text in texts]
    except HydraException as problem:
        known = "key=value, key=a,b, key=choice(a,b) or key=range(a,b,step)"
        raise ConfigProblem([f"{word!r} can't be read: write {known}"]) from problem


def _apply(raw: dict[str, Any], override: Any, problems: list[str]) -> None:
    """Sets one dotted key. A new key is refused, with or without Hydra's `+`, unless it is free."""
    *path, last = override.key_or_group.split(".")
    node: Any = raw
    for depth, part in enumerate(path):
        if not isinstance(node, dict) or part not in node:
            known = node if isinstance(node, dict) else ()
            where = ".".join(path[: depth + 1])
            problems.append(f"{where} is not a known key{did_you_mean(part, known)}")
            return
        node = node[part]
    if override.is_delete():
        if isinstance(node, dict) and last in node:
            del node[last]
        else:
            problems.append(f"{override.key_or_group} is not there to be removed")
        return
    if isinstance(node, dict):
        node[last] = _plain(override.value())
    else:
        problems.append(f"{'.'.join(path)} is no mapping: it has no {last!r}")


def _plain(value: Any) -> Any:
    """Hydra's quoted strings, lists and mappings as plain Python values."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value if isinstance(value, bool | int | float | None) else str(value)


def _other_problems(raw: dict[str, Any]) -> list[str]:
    """What else is wrong, for a message that already has something."""
    try:
        read_config(raw)
    except ConfigProblem as problem:
        return problem.problems
    return []


def options_of(group: str) -> list[str]:
    """The files of a config group."""
    folder = CONFIGS / group
    names = (p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.yaml"))
    return sorted(name for name in names if not name.endswith("base"))


def _check_choice(group: str, choice: str) -> list[str]:
    known = options_of(group)
    if choice in known:
        return []
    return [f"{group}={choice} does not exist{did_you_mean(choice, known)}"]


def default_scale() -> str:
    """The paper's where there is a GPU, otherwise mini, with a line that says so."""
    import torch

    if torch.cuda.is_available():
        return "paper"
    print("no GPU found: scale=mini (say scale=paper for the paper's own size)", flush=True)
    return "mini"


def gpus_per_node(config: RunConfig) -> int:
    """What a run asks a cluster for."""
    wanted, hardware = config.cluster.gpus_per_node, config.hardware
    if isinstance(wanted, int):
        return wanted
    if hardware.device == "cpu":
        return 0
    if hardware.device == "auto" or isinstance(hardware.processes, str):
        raise ConfigProblem(["say cluster.gpus_per_node=8, say, or hardware.device=cpu"])
    return hardware.processes // hardware.nodes


def resolve_hardware(
    hardware: HardwareConfig, slots: int, *, must_exist: bool = True, gpus: int | None = None
) -> HardwareConfig:
    """`auto` becomes what each node has: `gpus`, or this machine's visible ones, or the CPU.

    A step of few micro-batches (`slots`), as at small scales, takes as many GPUs as share them.
    """
    import torch

    if gpus is None:
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = hardware.device if hardware.device != "auto" else ("cuda" if gpus else "cpu")
    problems = []
    if device == "cuda" and not gpus and (must_exist or isinstance(hardware.processes, str)):
        problems.append("hardware.device=cuda, but no GPU is visible")
    if device == "cpu" and hardware.precision == "fp16":
        problems.append("hardware.precision=fp16 needs a GPU; use bf16 or fp32 on a CPU")
    processes, nodes = hardware.processes, hardware.nodes
    if isinstance(processes, str):
        processes = nodes * (_sharing(slots, gpus, nodes) if device == "cuda" else 1)
    elif device == "cuda" and must_exist and processes > nodes * gpus > 0:
        each = f" on each of {nodes} nodes" if nodes > 1 else ""
        problems.append(f"hardware.processes={processes}, but {gpus} GPUs are visible{each}")
    if problems:
        raise ConfigProblem(problems)
    threads = hardware.threads
    if isinstance(threads, str):
        threads = max(1, len(os.sched_getaffinity(0)) * nodes // processes)
    return replace(hardware, device=device, processes=processes, threads=threads)


def _sharing(slots: int, gpus: int, nodes: int) -> int:
    """The most GPUs of each node among which the micro-batches of a step divide evenly."""
    most = max(n for n in range(1, gpus + 1) if slots % (n * nodes) == 0 or n == 1)
    if most < gpus:
        print(f"using {most} of {gpus} GPUs: a step has {slots} micro-batches", flush=True)
    return most


def _check_names(config: RunConfig, tasks: Any) -> list[str]:
    """Names and options that other rooms define: optimizer, transforms, task and its options."""
    import torch

    from engine.trainer import make_transforms
    from optim.factory import build_optimizer
    from tasks.catalog import task_class

    problems: list[str] = []
    if config.task.name not in tasks:
        problems.append(f"task.name={config.task.name}{did_you_mean(config.task.name, tasks)}")
    else:
        read_task_options(task_class(config.task.name), config, problems)
    options = dict(config.optimizer)
    name = options.pop("name", None)
    try:
        build_optimizer(str(name), [torch.nn.Parameter(torch.zeros(1))], **options)
    except ValueError as problem:
        problems.append(f"optimizer: {problem}")
    try:
        make_transforms(config)
    except (TypeError, ValueError) as problem:
        problems.append(f"gradient: {problem}")
    return problems


def _check_that_rooms_are_ours() -> None:
    """`optim` and `tasks` are names that other distributions use too."""
    import optim
    import tasks

    for module in (optim, tasks):
        if not Path(module.__file__ or "").is_relative_to(ROOT):
            raise ConfigProblem(
                [f"{module.__name__} was imported from elsewhere: run from the checkout's root"]
            )


def describe(prepared: Prepared) -> str:
    """Some lines that say what will happen."""
    p, c = prepared.plan, prepared.config
    hardware = c.hardware
    about = prepared.task.about_data()
    return "\n".join(
        [
            f"run        {prepared.run_id}  (scale {c.scale})",
            f"batch      {p.global_batch:,} {p.unit}s = {p.processes} × {p.accumulation} "
            f"accumulated × {p.micro}",
            f"length     {p.steps:,} steps = {p.epochs:,.4g} epochs of {p.steps_per_epoch:,}, "
            f"of which {p.warmup:,} warm-up",
            f"on         {p.processes} × {hardware.device}"
            + (f" of {hardware.nodes} nodes" if hardware.nodes > 1 else "")
            + f", {hardware.precision}, {hardware.threads} threads each",
            *([f"data       {about}"] if about else []),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
