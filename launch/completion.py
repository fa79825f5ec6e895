"""Completion of the scripts' command lines in bash: `--shell-completion`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from launch.config_files import groups, is_group, options_of

if TYPE_CHECKING:
    from launch.command_line import CommandLine

# A script for bash to evaluate; for zsh after `autoload -U bashcompinit && bashcompinit`.
# The function takes the line up to the cursor apart by itself, so that COMP_WORDBREAKS, which has
# the = of an override, can stay as it is.
SET_UP = r"""_suite_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" candidates
    local cur="${line##*[[:space:]]}"
    if [[ "$line" =~ [[:space:]]-m[[:space:]]+[a-z_.]*$ ]]; then
        candidates=$(for f in scripts/[a-z]*.py; do f=${f##*/}; echo "scripts.${f%.py} "; done)
    elif [[ "$line" =~ ^[[:space:]]*([^[:space:]]+)[[:space:]]+-m[[:space:]]+(scripts\.[a-z_]+) ]]
    then
        candidates=$(COMP_LINE="$line" "${BASH_REMATCH[1]}" -m "${BASH_REMATCH[2]}" \
            --shell-completion query 2> /dev/null)
    else
        return 0
    fi
    local IFS=$'\n'
    COMPREPLY=($(compgen -W "$candidates" -- "$cur"))
    if [[ "$COMP_WORDBREAKS" == *=* && "$cur" == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${cur%=*}="}")
    fi
}
complete -o default -o bashdefault -o nospace -F _suite_completion python python3 python3.11"""


def complete_line(parser: CommandLine) -> list[str]:
    """What may follow in the line up to the cursor, which bash passes in COMP_LINE."""
    line = os.environ.get("COMP_LINE", "")
    words = line.split()[3:]  # python -m scripts.launch
    last = words.pop() if words and not line[-1:].isspace() else ""
    if last.startswith("-"):
        found = [f"{flag} " for flag in parser.flags()]
    else:
        found = complete_override(words, last) if parser.takes_overrides else []
    return sorted(name for name in found if name.startswith(last))


def complete_override(words: list[str], last: str) -> list[str]:
    """Groups and their options; keys and current values once the experiment is known."""
    sign = last[: len(last) - len(last.lstrip("+~"))]
    key, equals, value = last.removeprefix(sign).partition("=")
    if equals and is_group(key):
        before = value.rpartition(",")[0]  # -m experiment=a,b
        start = f"{sign}{key}={before}," if before else f"{sign}{key}="
        return [f"{start}{option} " for option in options_of(key)]
    keys = _keys_of([word for word in words if "=" in word])
    if equals:
        return [f"{sign}{key}={keys[key]} "] if key in keys else []
    depth = key.count(".")
    found = {f"{sign}{group}=" for group in groups()} if depth == 0 else set()
    for name in keys:
        parts = name.split(".")
        more = len(parts) > depth + 1
        found.add(sign + ".".join(parts[: depth + 1]) + ("." if more else "="))
    return sorted(found)


def _keys_of(overrides: list[str]) -> dict[str, Any]:
    """The keys of the configuration so far and their values; none if it can't be composed."""
    from engine.scaling import flat
    from launch.compose import collect
    from launch.override_text import value_text

    composed = collect(["scale=paper", *overrides], [])
    if composed is None:
        return {}
    texts = {key: value_text(value) for key, value in flat(composed[0]).items()}
    return {key: "" if " " in text else text for key, text in texts.items()}
