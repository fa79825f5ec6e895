"""Composes a configuration from configs/ and the command line: the only module that knows Hydra."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from engine.config import NOT_SCIENCE, ConfigProblem, read_config
from engine.scaling import Multiply, multiply
from engine.schema import did_you_mean, read_dataclass
from launch.hardware import default_scale

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"


@dataclass(frozen=True)
class Composed:
    """A configuration as nested dicts, and what its scale changed: key to [paper's, used] value."""

    raw: dict[str, Any]
    changed_by_scale: dict[str, list[Any]]


def compose(overrides: list[str]) -> dict[str, Any]:
    """Nested dicts from configs/ and overrides; raises ConfigProblem with every problem found."""
    problems: list[str] = []
    composed = collect(overrides, problems)
    if problems:
        if composed is not None:
            problems += _other_problems(composed.raw)
        raise ConfigProblem(problems)
    assert composed is not None
    return composed.raw


def collect(overrides: list[str], problems: list[str]) -> Composed | None:
    """As `compose`, but adds problems to a list and leaves out the overrides that have them.

    None where there is no experiment to compose.
    """
    choices, values = _read_overrides(overrides, problems)
    if "experiment" not in choices:
        if not any(problem.startswith("experiment=") for problem in problems):
            known = ", ".join(options_of("experiment"))
            problems.append(f"experiment is missing; there are {known}")
        return None
    if "scale" not in choices:
        choices["scale"] = default_scale()
    try:
        raw = _compose_groups(CONFIGS, tuple(choices.items()))
        paper = _compose_groups(CONFIGS, tuple((choices | {"scale": "paper"}).items()))
    except ConfigProblem as problem:
        problems += problem.problems
        return None
    raw = copy.deepcopy(raw) | {"experiment": choices["experiment"], "scale": choices["scale"]}
    # First what a scale makes of the recipe, then the user's own values, which stay as given.
    factors = [v for v in values if v.key_or_group.split(".")[0] == "multiply"]
    for override in factors:
        _apply(raw, override, problems)
    by = read_dataclass(Multiply, raw.pop("multiply", {}), "multiply", problems)
    if by is not None:
        multiply(raw, by, problems)
    changed = _changes(paper, raw)
    for override in values:
        if override not in factors:
            _apply(raw, override, problems)
            changed = {k: v for k, v in changed.items() if not _covers(override.key_or_group, k)}
    return Composed(raw, changed)


def apply_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of a complete configuration with some values changed; raises with every problem."""
    changed, problems = copy.deepcopy(raw), list[str]()
    choices, values = _read_overrides([*overrides], problems)
    problems += [f"{group} is a config group of a new run" for group in choices]
    for override in values:
        _apply(changed, override, problems)
    if problems:
        raise ConfigProblem(problems)
    return changed


def _read_overrides(overrides: list[str], problems: list[str]) -> tuple[dict[str, str], list[Any]]:
    """Choices of config groups, and Hydra's overrides of single values."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    choices: dict[str, str] = {}
    values: list[Any] = []
    parser = OverridesParser.create()
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException:
            problems.append(f"{text!r} can't be read: write key=value, without spaces around =")
            continue
        key = override.key_or_group
        if (CONFIGS / key).is_dir() and not override.is_delete():
            choice = str(override.value())
            if choice in (known := options_of(key)):
                choices[key] = choice
            else:
                problems.append(f"{key}={choice} does not exist{did_you_mean(choice, known)}")
        else:
            values.append(override)
    return choices, values


@lru_cache(maxsize=512)  # a sweep composes the same groups again and again
def _compose_groups(configs: Path, choices: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    """The files of some groups, merged and resolved."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    OmegaConf.register_new_resolver("data_root", _data_root, replace=True)
    try:
        with initialize_config_dir(config_dir=str(configs), version_base="1.3"):
            composed = hydra_compose("run", [f"{k}={v}" for k, v in choices])
        raw: dict[str, Any] = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as problem:
        raise ConfigProblem([" ".join(str(problem).split())]) from problem
    return raw


def _data_root() -> str:
    """Where small real data sets are, for configs/small_data; an empty variable counts as unset."""
    return os.environ.get("DATA_ROOT") or "data"


def multirun_values(override: str) -> tuple[str, list[Any]]:
    """Key and values of an override as Hydra's multirun reads it (`0,1`, `choice(…)`, `range(…)`).

    A plain override has one value, and one that removes a key has none.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    try:
        parsed = parser.parse_override(override)
        key = parsed.get_key_element()
        if parsed.is_delete():
            return key, []
        if not parsed.is_sweep_override():
            return key, [_plain(parsed.value())]
        texts = list(parsed.sweep_string_iterator())
        return key, [_plain(parser.parse_override(f"{key}={text}").value()) for text in texts]
    except HydraException as problem:
        known = "key=value, key=a,b, key=choice(a,b) or key=range(a,b,step)"
        raise ConfigProblem([f"{override!r} can't be read: write {known}"]) from problem


def _apply(raw: dict[str, Any], override: Any, problems: list[str]) -> None:
    """Sets one dotted key. New keys are left to the schema, which refuses those it lacks."""
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
            problems.append(f"~{override.key_or_group}: there is no such key to remove")
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


def _changes(paper: dict[str, Any], used: dict[str, Any]) -> dict[str, list[Any]]:
    """The parts of the recipe in which two composed configurations differ; None where missing."""
    before, after = _flat(paper), _flat(used)
    apart = ("scale", "experiment", "multiply", *NOT_SCIENCE)
    return {
        key: [before.get(key), after.get(key)]
        for key in dict.fromkeys([*after, *before])
        if before.get(key) != after.get(key) and not any(_covers(name, key) for name in apart)
    }


def _covers(name: str, key: str) -> bool:
    """Whether a dotted key is, or lies below, another one."""
    return key == name or key.startswith(f"{name}.")


def _flat(nested: dict[str, Any], where: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{where}.{key}" if where else key
        flat |= _flat(value, name) if isinstance(value, dict) and value else {name: value}
    return flat


def _other_problems(raw: dict[str, Any]) -> list[str]:
    """What else is wrong, for a message that already has something."""
    try:
        read_config(raw)
    except ConfigProblem as problem:
        return problem.problems
    return []


def header_of(experiment: str) -> str:
    """The comment that an experiment's file begins with; empty for one that has none."""
    file = CONFIGS / "experiment" / f"{experiment}.yaml"
    lines = file.read_text().splitlines() if file.exists() else []
    comments = [line for line in lines if line.startswith("#") and "@package" not in line]
    return "\n".join(line.removeprefix("#").strip() for line in comments)


def options_of(group: str) -> list[str]:
    """The files of a config group."""
    folder = CONFIGS / group
    names = (p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.yaml"))
    return sorted(name for name in names if not name.endswith("base"))
