"""Composes a configuration from configs/ and the command line: the only module that knows Hydra.

Hydra parses every override, merges the files and applies the overrides. On top of it stand the
scales (`multiply:`, engine/scaling.py) and the strict schema (engine/config.py), and all problems
are collected instead of the first one.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

from engine.config import ConfigProblem
from engine.scaling import Multiply, changes, covers, flat, multiply
from engine.schema import read_dataclass
from launch.config_files import (
    CONFIGS,
    describe_options,
    folder_problems,
    is_group,
    nearest_option,
    options_of,
    text_of,
)
from launch.hardware import default_scale

SEARCH_PATH = "hydra.searchpath"  # Hydra's own name for folders of further configs: --config-dir


@dataclass(frozen=True)
class Origin:
    """Where a configuration comes from: what its scale changed, and the user's own files in it."""

    changed_by_scale: dict[str, list[Any]] = field(default_factory=dict)  # key: [paper's, used]
    user_configs: dict[str, str] = field(default_factory=dict)  # text of files of --config-dir


@dataclass
class _Given:
    """Overrides as Hydra has parsed them: choices of config groups, and single values."""

    choices: dict[str, Any] = field(default_factory=dict)  # by group
    values: list[Any] = field(default_factory=list)
    folders: tuple[Path, ...] = ()  # of the user's own configs

    def choice(self, group: str) -> str | None:
        chosen = self.choices.get(group)
        return None if chosen is None or chosen.is_delete() else str(chosen.value())

    def groups(self, **instead: str) -> tuple[str, ...]:
        """The choices as texts, some of them replaced."""
        texts = {group: override.input_line for group, override in self.choices.items()}
        return tuple((texts | {k: f"{k}={v}" for k, v in instead.items()}).values())


def compose(overrides: list[str]) -> dict[str, Any]:
    """Nested dicts from configs/ and overrides; ConfigProblem has all problems of composing."""
    problems: list[str] = []
    composed = collect(overrides, problems, with_origin=False)
    if composed is None or problems:
        raise ConfigProblem(problems)
    return composed[0]


def collect(
    overrides: list[str], problems: list[str], *, with_origin: bool = True
) -> tuple[dict[str, Any], Origin] | None:
    """The nested dicts and their origin; adds problems to a list, and leaves out what has them.

    None where there is no experiment to compose. Without its origin it takes half the time.
    """
    from omegaconf import OmegaConf

    given = _read_overrides(overrides, problems)
    experiment = given.choice("experiment")
    if experiment is None:
        if not any(problem.startswith("experiment=") for problem in problems):
            known = describe_options(options_of("experiment", given.folders))
            problems.append(f"experiment=… is missing; {known}")
        return None
    scale = given.choice("scale") or default_scale()
    groups = given.groups(scale=scale)
    try:
        config = copy.deepcopy(_compose_groups(CONFIGS, given.folders, groups))
        for key, value in {"experiment": experiment, "scale": scale}.items():
            OmegaConf.update(config, key, value, force_add=True)
        for override in given.values:
            _apply(config, override, problems)
        raw = _resolve(config)
    except ConfigProblem as problem:
        problems += problem.problems
        return None
    # A scale multiplies the recipe's own values; those that the user gives stay as given.
    own = [key for o in given.values for key in _keys(o) if not covers("multiply", key)]
    by = read_dataclass(Multiply, raw.pop("multiply", {}), "multiply", problems)
    if by is not None:
        multiply(raw, by, problems, keep=own)
    if not with_origin:
        return raw, Origin()
    paper = _resolve(_compose_groups(CONFIGS, given.folders, given.groups(scale="paper")))
    changed = {k: v for k, v in changes(paper, raw).items() if not any(covers(o, k) for o in own)}
    return raw, Origin(changed, _user_configs(given.folders, groups))


def _keys(override: Any) -> list[str]:
    """The dotted keys that an override sets or removes; a mapping is merged, key by key."""
    key, value = override.key_or_group, override.value()
    return list(flat({key: value})) if isinstance(value, dict) else [key]


def apply_overrides(
    raw: dict[str, Any], overrides: Sequence[str], choices: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """A copy of a complete configuration with some values changed; raises with every problem.

    Of a config group in `choices`, these keys are taken from the chosen file.
    """
    from omegaconf import OmegaConf

    config, problems = OmegaConf.create(raw), list[str]()
    given = _read_overrides([*overrides], problems)
    for group, chosen in given.choices.items():
        if group not in choices or chosen.is_delete():
            problems.append(f"{group} is a config group of a new run")
            continue
        values = yaml.safe_load(text_of(f"{group}/{chosen.value()}"))
        config[group].update({key: values[key] for key in choices[group]})
    for override in given.values:
        _apply(config, override, problems)
    if problems:
        raise ConfigProblem(problems)
    return _resolve(config)


def _read_overrides(overrides: list[str], problems: list[str]) -> _Given:
    """What Hydra's grammar makes of the command line."""
    given = _Given()
    parsed = [_parse(text, problems) for text in overrides]
    given.folders = _folders([o for o in parsed if o is not None], problems)
    for override in parsed:
        if override is None or override.key_or_group == SEARCH_PATH:
            continue
        key = override.key_or_group
        if override.is_sweep_override():
            problems.append(_no_sweep(override, is_text=not is_group(key, given.folders)))
        elif not is_group(key, given.folders):
            given.values.append(override)
        elif override.is_delete() or _exists(override, given.folders, problems):
            given.choices[key] = override
    return given


def _parse(text: str, problems: list[str]) -> Any:
    """Hydra's Override; None after adding to `problems`."""
    from hydra.errors import HydraException

    try:
        return _parser().parse_override(text)
    except HydraException:
        wanted = "write key=value, without spaces around =; quote other signs: \"key='a, b'\""
        problems.append(f"{text!r} can't be read: {wanted}")
        return None


@cache
def _parser() -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()


def _no_sweep(override: Any, *, is_text: bool) -> str:
    key, _, text = override.input_line.partition("=")
    hint = f"{key}={text} is several values: add -m (--multirun) to run each of them"
    if "(" in text or not is_text:
        return hint
    return f"{hint}, or write a list as {key}=[{text}] and a text as \"{key}='{text}'\""


def _exists(override: Any, folders: Sequence[Path], problems: list[str]) -> bool:
    """Whether a group has this option."""
    group, option = override.key_or_group, str(override.value())
    if text_of(f"{group}/{option}", folders):
        return True
    known = options_of(group, folders)
    problems.append(f"{group}={option} does not exist{nearest_option(option, known)}")
    return False


def own_folders(overrides: Sequence[str], problems: list[str]) -> tuple[Path, ...]:
    """The user's folders of configs, from `hydra.searchpath=[…]` among the overrides."""
    given = [text for text in overrides if text.startswith(f"{SEARCH_PATH}=")]
    return _folders([o for text in given if (o := _parse(text, problems))], problems)


def _folders(overrides: Sequence[Any], problems: list[str]) -> tuple[Path, ...]:
    given = [o.value() for o in overrides if o.key_or_group == SEARCH_PATH]
    if not given:
        return ()
    if not isinstance(given[-1], list):
        problems.append(f"{SEARCH_PATH} must be a list of folders, not {given[-1]!r}")
        return ()
    texts = [str(text).removeprefix("file://") for text in given[-1]]
    folders = tuple(Path(text).expanduser().absolute() for text in texts)
    problems += folder_problems(folders)
    return tuple(folder for folder in folders if folder.is_dir())


def searching(*folders: str | Path) -> list[str]:
    """The override that adds folders of configs."""
    paths = ",".join(f"'file://{Path(folder).expanduser().absolute()}'" for folder in folders)
    return [f"{SEARCH_PATH}=[{paths}]"] if folders else []


@contextmanager
def _as_config_problems() -> Iterator[None]:
    """What Hydra, OmegaConf and YAML raise, in one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except (HydraException, OmegaConfBaseException, UnicodeError, yaml.YAMLError) as problem:
        raise ConfigProblem([" ".join(str(problem).split())]) from problem


@contextmanager
def _hydra(configs: Path) -> Iterator[Any]:
    """Hydra's config loader."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    # Where small real data sets are, for configs/small_data; an empty variable counts as unset.
    OmegaConf.register_new_resolver(
        "data_root", lambda: os.environ.get("DATA_ROOT") or "data", replace=True
    )
    with _as_config_problems(), initialize_config_dir(str(configs), version_base="1.3"):
        _parse_files_once()
        yield GlobalHydra.instance().config_loader()


@cache
def _parse_files_once() -> None:
    """Has Hydra remember the files that it has parsed: most of the time goes into parsing YAML."""
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra._internal.sources_registry import SourcesRegistry

    parsed: dict[tuple[Any, ...], Any] = {}

    class Remembering(FileConfigSource):
        def load_config(self, config_path: str) -> Any:
            file = Path(self.path, self._normalize_file_name(config_path))
            stat = file.stat()
            key = (self.provider, file, stat.st_mtime_ns, stat.st_size)
            if key not in parsed:
                parsed[key] = super().load_config(config_path)
            return copy.deepcopy(parsed[key])  # Hydra changes what it is given

    SourcesRegistry.instance().types[FileConfigSource.scheme()] = Remembering


@lru_cache(maxsize=512)  # a sweep composes the same groups again and again
def _compose_groups(configs: Path, folders: tuple[Path, ...], groups: tuple[str, ...]) -> Any:
    """The files of some groups, merged by Hydra: its `compose` without the settings of its own."""
    from hydra._internal.defaults_list import create_defaults_list
    from omegaconf import OmegaConf

    with _hydra(configs) as loader:
        given, files = loader._parse_overrides_and_create_caching_repo(
            "run", [*groups, *searching(*folders)]
        )
        found = create_defaults_list(files, "run", given, prepend_hydra=False, skip_missing=False)
        config = loader._compose_config_from_defaults_list(found.defaults, files)
    OmegaConf.set_struct(config, True)
    return config


@_as_config_problems()
def _resolve(config: Any) -> dict[str, Any]:
    """Plain nested dicts, with interpolations replaced by what they refer to."""
    from omegaconf import OmegaConf

    raw: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # type: ignore[assignment]
    return raw


def _apply(config: Any, override: Any, problems: list[str]) -> None:
    """Has Hydra apply one override of a value.

    A key that the files do not have needs no `+`: the schema knows more keys than the files, and
    refuses those that it does not know.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.errors import HydraException

    text = override.input_line
    if not (override.is_add() or override.is_force_add() or override.is_delete()):
        override = _parse(f"++{text}", problems)
    try:
        ConfigLoaderImpl._apply_overrides_to_config([override], config)
    except HydraException as problem:
        reason = problem.__cause__ or problem
        problems.append(f"{text}: {str(reason).strip().splitlines()[0]}")


def defaults_of(overrides: list[str]) -> list[tuple[str, str, str]]:
    """What is merged, in this order: file, the key that it fills, and who names it."""
    problems: list[str] = []
    given = _read_overrides(overrides, problems)
    if problems:
        raise ConfigProblem(problems)
    scale = given.choice("scale") or default_scale()
    return _defaults(given.folders, given.groups(scale=scale))


def _defaults(folders: tuple[Path, ...], groups: Sequence[str]) -> list[tuple[str, str, str]]:
    from hydra.types import RunMode

    with _hydra(CONFIGS) as loader:
        found = loader.compute_defaults_list("run", [*groups, *searching(*folders)], RunMode.RUN)
    return [
        (str(one.config_path), one.package or "", one.parent or "")
        for one in found.defaults
        if not str(one.config_path).startswith("hydra/")
    ]


def _user_configs(folders: tuple[Path, ...], groups: Sequence[str]) -> dict[str, str]:
    """The whole text of the user's own files among those that are merged."""
    names = [name for name, *_ in _defaults(folders, groups)] if folders else []
    own = [name for name in names if not (CONFIGS / f"{name}.yaml").exists()]
    return {f"{name}.yaml": text for name in own if (text := text_of(name, folders))}


def multirun_values(override: str, folders: Sequence[Path] = ()) -> tuple[str, list[Any] | str]:
    """Key and values of an override in Hydra's grammar for sweeps.

    `0,1`, `choice(…)`, `range(…)`, `sort(…)` and, for config groups, `glob(…)` are values. An
    interval is the text that names it in a search. A plain override has one value, and one that
    removes a key has none.
    """
    from hydra.core.override_parser.types import Glob

    problems: list[str] = []
    parsed = _parse(override, problems)
    if parsed is None:
        known = "key=value, key=a,b, key=choice(a,b), key=range(a,b,step) or group=glob(a*)"
        raise ConfigProblem([f"{override!r} can't be read: write {known}"])
    key, value = parsed.get_key_element(), parsed.value()
    if parsed.is_delete():
        return key, []
    if not parsed.is_sweep_override():
        return key, [value]
    if parsed.is_interval_sweep():
        kind = "log" if "log" in value.tags else "uniform"
        return key, f"{kind}({value.start!r}, {value.end!r})"
    if isinstance(parsed._value, Glob):
        return key, _matching(parsed, folders)
    value.shuffle = False  # the scheduler chooses the order
    texts = list(parsed.sweep_string_iterator())
    return key, [_parse(f"key={text}", problems).value() for text in texts]


def _matching(parsed: Any, folders: Sequence[Path]) -> list[str]:
    """The options of a group that a glob names."""
    group = parsed.key_or_group
    known = options_of(group, folders)
    if not is_group(group, folders):
        raise ConfigProblem([f"{parsed.input_line}: {group} is no config group"])
    if not (found := parsed._value.filter(known)):
        raise ConfigProblem([f"{parsed.input_line} matches nothing; {describe_options(known)}"])
    return [str(name) for name in found]
