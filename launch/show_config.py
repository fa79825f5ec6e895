"""`--cfg` and `--info`: what would run, shown before anything does."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

import yaml

from analysis.tables import text_table
from engine.config import ConfigProblem
from engine.schema import did_you_mean
from launch.command_line import CommandLine
from launch.compose import defaults_of, own_folders
from launch.config_files import folders_of


def add_config_flags(parser: CommandLine) -> None:
    """Hydra's flags for looking at a configuration."""
    what = "show the composed configuration (job), or the integers of its plan, and stop"
    parser.add_argument("--cfg", choices=("job", "plan"), help=what)
    parser.add_argument("-p", "--package", metavar="KEY", help="only this part of --cfg job")
    what = "show the files that are merged, in their order, or the folders they come from, and stop"
    parser.add_argument("--info", choices=("defaults", "searchpath"), help=what)


def shown_config(options: argparse.Namespace) -> str:
    """What --cfg and --info ask for; empty if they were not given. ConfigProblem as a launch."""
    if options.package is not None and options.cfg != "job":
        raise ConfigProblem(["--package shows a part of --cfg job: give both"])
    if options.cfg == "job":
        return _job(options.overrides, options.package)
    if options.cfg == "plan":
        return _plan(options.overrides)
    if options.info == "defaults":
        return text_table([("file", "fills", "named by"), *defaults_of(options.overrides)])
    if options.info == "searchpath":
        problems: list[str] = []
        folders = folders_of(own_folders(options.overrides, problems))
        if problems:
            raise ConfigProblem(problems)
        return "\n".join(map(str, folders))
    return ""


def _job(overrides: list[str], package: str | None) -> str:
    """The configuration as it is validated; `auto` is resolved where it runs."""
    from launch.run_spec import read_overrides

    config, _ = read_overrides(overrides, must_exist=False)
    part: Any = asdict(config)
    for key in package.split(".") if package else ():
        if not isinstance(part, dict) or key not in part:
            known = part if isinstance(part, dict) else ()
            raise ConfigProblem([f"--package {package}: no {key!r}{did_you_mean(key, known)}"])
        part = part[key]
    return _yaml(part)


def _plan(overrides: list[str]) -> str:
    """What follows from the configuration: id, folder and integers."""
    from launch.run_spec import make_run_spec

    spec = make_run_spec(overrides, need_data=False)
    numbers = {k: v for k, v in asdict(spec.plan).items() if k != "schedule"}
    about = {"run_id": spec.run_id, "fingerprint": spec.fingerprint, "folder": str(spec.folder)}
    return _yaml(about | {"plan": numbers, "changed_by_scale": spec.origin.changed_by_scale})


def _yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
