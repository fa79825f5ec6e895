"""The command lines of all scripts: help, one message for a mistake, shell completion.

Imports neither torch nor Hydra: --help and mistakes are answered at once.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial, wraps
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

from engine.schema import did_you_mean
from launch.config_files import groups, options_of

WIDTH = 100  # of help, as of the docstrings in it
P = ParamSpec("P")


class CommandLine(argparse.ArgumentParser):
    """The parser of a script.

    `doc` is the script's docstring: what it does, examples, exit statuses.
    """

    takes_overrides = False

    def __init__(self, script: str, doc: str | None) -> None:
        super().__init__(
            prog=f"python -m scripts.{script}",
            description=doc,
            formatter_class=partial(argparse.RawDescriptionHelpFormatter, width=WIDTH),
            allow_abbrev=False,
        )
        call = f'eval "$({self.prog} --shell-completion bash)"'
        self.add_argument(
            "--shell-completion",
            action=_Complete,
            default=argparse.SUPPRESS,
            choices=("bash", "query"),
            metavar="bash",
            help=f"print tab completion of all scripts for bash; to install it: {call}",
        )

    def add_overrides(self, what: str = "overrides, see below") -> None:
        """`key=value` overrides of a configuration, after all other positional arguments."""
        self.takes_overrides = True
        self.add_argument("overrides", nargs="*", metavar="key=value", help=what)
        what = "a folder of your own configs: experiment/, sweep/ and other groups"
        self.add_argument("-cd", "--config-dir", type=Path, metavar="DIR", help=what)

    def add_model(self, what: str = "a run's folder, a checkpoint or an export") -> None:
        """A trained model, and which of a run's checkpoints."""
        self.add_argument("path", type=Path, metavar="model", help=what)
        self.add_argument("--checkpoint", default="last", help="last (default), best or a step")
        what = "use the mean of the last K checkpoints"
        self.add_argument("--average", type=int, default=1, metavar="K", help=what)

    def read(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """The arguments; flags and overrides in any order. Exits with status 2 if they are bad."""
        words = [*(sys.argv[1:] if arguments is None else arguments)]
        flags = [word for word in takewhile(lambda word: word != "--", words) if word[:2] == "--"]
        for flag in flags:  # before argparse misses other arguments
            if flag.partition("=")[0] not in self.flags():
                self.error(f"unrecognized arguments: {flag}")
        parse = self.parse_args if self._subparsers else self.parse_intermixed_args
        options = parse(words)
        if self.takes_overrides and options.config_dir is not None:
            from launch.compose import searching

            options.overrides += searching(options.config_dir)
        return options

    def format_help(self) -> str:
        """With the config groups, where overrides can choose from them."""
        text = super().format_help()
        return f"{text}\n{describe_groups()}\n" if self.takes_overrides else text

    def error(self, message: str) -> NoReturn:
        """One line, with the nearest match for a flag or a choice that does not exist."""
        if unknown := re.match(r"unrecognized arguments: (.*)", message):
            flag = next((x for x in unknown[1].split() if x.startswith("-")), unknown[1].split()[0])
            name = flag.partition("=")[0]
            known = self.flags()  # also of other subcommands
            nearest = " here" if name in known else did_you_mean(name, known)
            message = f"{flag} is not an option{nearest}"
        elif missing := re.match(r"the following arguments are required: (.*)", message):
            optional = [str(action.metavar) for action in self._actions if action.nargs == "*"]
            names = [name for name in missing[1].split(", ") if name not in optional]
            message = f"{', '.join(names)} is missing; see --help"
        elif wrong := re.match(r"(.*): invalid choice: '(.*?)' \(choose from (.*)\)", message):
            choices = [name.strip("' ") for name in wrong[3].split(",")]
            message = f"{wrong[1]}: {wrong[2]} is not a choice{did_you_mean(wrong[2], choices)}"
        self.exit(2, f"{self.prog}: {message}\n")

    def flags(self) -> list[str]:
        """The long names of the options, those of subcommands too."""
        parsers: list[argparse.ArgumentParser] = [self]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
        names = {name for parser in parsers for name in parser._option_string_actions}
        return sorted(name for name in names if name.startswith("--"))


def reports(*problems: type[Exception]) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Decorates a command: such a problem is the user's, its message is printed, the status 2."""

    def decorate(command: Callable[P, int]) -> Callable[P, int]:
        @wraps(command)
        def reported(*arguments: P.args, **options: P.kwargs) -> int:
            try:
                return command(*arguments, **options)
            except problems as problem:
                print(problem, file=sys.stderr)
                return 2

        return reported

    return decorate


class _Complete(argparse.Action):
    """--shell-completion: prints, and ends the script as --help does."""

    def __call__(self, parser: Any, _: Any, value: Any, option: str | None = None) -> NoReturn:
        from launch.completion import SET_UP, complete_line

        print(SET_UP if value == "bash" else "\n".join(complete_line(parser)))
        sys.exit(0)


def describe_groups() -> str:
    """The config groups with their options, and how an override is written."""
    lines = ["config groups (group=option):"]
    names = groups()
    indent = " " * (max(map(len, names)) + 4)
    for group in names:
        folders: dict[str, list[str]] = {}
        for folder, _, option in (name.rpartition("/") for name in options_of(group)):
            folders.setdefault(folder, []).append(option)
        start = f"  {group}".ljust(len(indent))
        for folder, options in folders.items():
            lines.append(
                textwrap.fill(
                    " ".join([f"{folder}/:", *options] if folder else options),
                    WIDTH,
                    initial_indent=start,
                    subsequent_indent=indent + ("  " if folder else ""),
                    break_on_hyphens=False,
                )
            )
            start = indent
    lines.append(
        "values: key=value, such as optimizer.lr=0.01 seed=1 \"budget='10 epochs'\"; key=null;\n"
        "lists [a,b] and mappings {a: b}; +key=value adds, ~key removes, as in Hydra.\n"
        "docs/running.md explains them."
    )
    return "\n".join(lines)
