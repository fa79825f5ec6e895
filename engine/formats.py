"""Values as text: clocks, durations, quantities, parts of file names."""

from __future__ import annotations

import math


def format_duration(seconds: float) -> str:
    """A clock: `0:07`, `12:30`, `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_time(seconds: float) -> str:
    """A duration in prose and tables: `98 s`, `12 min`, `1 h 5 min` from two hours on."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def slug(text: str) -> str:
    """For a file's name: letters and digits, with hyphens between."""
    return "-".join("".join(c if c.isalnum() else " " for c in text).split())


def format_hours(hours: float) -> str:
    """An amount of work, to two or more digits: `0.25 h`, `3.4 h`, `1,250 h`."""
    return f"{format_number(hours, 2)} h"


def format_number(value: float, digits: int = 4) -> str:
    """At least `digits` significant digits, whole numbers above with commas: `0.01235`, `12,346`.

    An exponent where zeros would hide the number: `1.235e-07`.
    """
    if math.isfinite(value) and abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"
