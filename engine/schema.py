"""A strict reader of dataclasses from nested dicts: unknown keys, types, ranges and names.

Every problem is collected with its dotted key, so that one message lists them all.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Within:
    """The range of a number, both ends included; `above` excludes the lower end."""

    low: float
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        if math.isfinite(self.high):
            return f"between {self.low:g} and {self.high:,.12g}"
        return f"{'more than' if self.above else 'at least'} {self.low:g}"


@dataclass(frozen=True)
class OneOf:
    """The texts that a value may be."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"one of {', '.join(self.names)}"


def read_dataclass(kind: type, raw: Any, where: str, problems: list[str]) -> Any:
    """An instance; what is wrong is added to `problems`, with `where` as the dotted path so far.

    A bad value of an optional field is replaced by its default, so that the rest can be checked.
    None where a required field is bad or missing.
    """
    values = read_fields(kind, raw, where, problems)
    fields = dataclasses.fields(kind)
    return kind(**values) if all(f.name in values or not _is_required(f) for f in fields) else None


def read_fields(kind: type, raw: Any, where: str, problems: list[str]) -> dict[str, Any]:
    """The values of the fields that are right, as `read_dataclass`."""
    if not isinstance(raw, dict):
        problems.append(f"{where or 'the configuration'} must be a mapping, not {raw!r}")
        return {}
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in raw:
        if key not in fields:
            problems.append(f"{_join(where, key)} is not a known key{did_you_mean(key, fields)}")
    values: dict[str, Any] = {}
    for name, f in fields.items():
        if name in raw:
            before = len(problems)
            value = _read_value(hints[name], raw[name], _join(where, name), problems)
            is_nested = dataclasses.is_dataclass(hints[name])
            if len(problems) == before or (is_nested and value is not None):
                values[name] = value
        elif _is_required(f):
            problems.append(f"{_join(where, name)} is missing")
    return values


def _is_required(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """A hint to the closest known name, or the list of all."""
    names = list(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names)}"


def _join(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def _read_value(hint: Any, raw: Any, where: str, problems: list[str]) -> Any:
    if dataclasses.is_dataclass(hint):
        return read_dataclass(typing.cast(type, hint), raw, where, problems)
    limits: tuple[Any, ...] = ()
    if typing.get_origin(hint) is Annotated:
        hint, *rest = typing.get_args(hint)
        limits = tuple(rest)
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for kind in allowed:
        ok, value = _fits(kind, raw)
        if ok:
            problems += _outside(where, value, limits, allowed)
            return value
    names = " or ".join(_name(kind) for kind in allowed)
    problems.append(f"{where} must be {names}, not {raw!r}")
    return None


def _outside(where: str, value: Any, limits: Sequence[Any], allowed: Sequence[Any]) -> list[str]:
    """What types can't express: finite numbers, ranges and names."""
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{where} must be finite, not {value!r}"]
    for limit in limits:
        if isinstance(limit, OneOf) and isinstance(value, str) and value not in limit.names:
            wanted = f"a number or {limit.names[0]!r}" if int in allowed else str(limit)
            return [f"{where} must be {wanted}, not {value!r}"]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(limit, Within) and is_number and value not in limit:
            return [f"{where} must be {limit}, not {value!r}"]
    return []


def _fits(kind: Any, raw: Any) -> tuple[bool, Any]:
    """Whether a YAML value is of a type, and the value: 1 is read as 1.0, but never True as 1."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True, raw
    if kind is type(None):
        return raw is None, None
    if kind is float:
        ok = isinstance(raw, int | float) and not isinstance(raw, bool)
        return ok, float(raw) if ok else None
    if kind is int:
        return isinstance(raw, int) and not isinstance(raw, bool), raw
    if origin is list:
        if not isinstance(raw, list):
            return False, None
        items = [_fits(arguments[0], item) for item in raw]
        return all(ok for ok, _ in items), [item for _, item in items]
    if origin is dict:
        return isinstance(raw, dict) and all(_fits(arguments[1], v)[0] for v in raw.values()), raw
    return isinstance(raw, kind), raw


def _name(kind: Any) -> str:
    names = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}
    if kind is type(None):
        return "null"
    if typing.get_origin(kind) is list:
        return "a list"
    if typing.get_origin(kind) is dict and typing.get_origin(typing.get_args(kind)[1]) is dict:
        return "a mapping of mappings"
    return names.get(kind, "a mapping")
