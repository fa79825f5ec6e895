"""The fingerprints of experiments as they are configured now."""

from __future__ import annotations

from collections.abc import Iterable

from engine.config import read_config, recipe_fingerprint
from launch.compose import compose, options_of


def recipe_fingerprints(wanted: Iterable[tuple[str, str]]) -> set[str]:
    """Of experiments at scales, without overrides; an experiment that is gone has none.

    Needs neither data nor a device.
    """
    known = set(options_of("experiment"))
    return {
        recipe_fingerprint(read_config(compose([f"experiment={experiment}", f"scale={scale}"])))
        for experiment, scale in sorted(set(wanted))
        if experiment in known
    }
