"""Values as texts of overrides, which Hydra reads as the same values."""

from __future__ import annotations

import re
from typing import Any

_PLAIN_TEXT = re.compile(r"(?!(?:true|false|null|nan|inf)$)[A-Za-z_][\w./-]*", re.IGNORECASE)


def override_of(key: str, value: Any) -> str:
    """`key=value` in Hydra's grammar."""
    return f"{key}={value_text(value)}"


def value_text(value: Any) -> str:
    """A value in Hydra's grammar, quoted where it must be."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(value_text, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{value_text(item)}" for key, item in value.items()) + "}"
    text = str(value)
    if _PLAIN_TEXT.fullmatch(text):
        return text
    quoted = re.sub(r"\\+(?='|$)", lambda match: match[0] * 2, text).replace("'", "\\'")
    return f"'{quoted}'"
