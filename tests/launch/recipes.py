"""`python -m tests.launch.recipes`: freezes the fingerprints of all experiments at all scales.

A recipe's fingerprint is part of its runs' ids. Run this after a change that is meant to change
recipes, and commit the difference, which then shows which ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from engine.config import SCALES, RunConfig, read_config, recipe_fingerprint
from launch.compose import compose, options_of

FROZEN = Path(__file__).with_name("fingerprints.json")


def recipes() -> Iterator[tuple[str, RunConfig]]:
    """By `experiment scale`."""
    for experiment in options_of("experiment"):
        for scale in SCALES:
            raw = compose([f"experiment={experiment}", f"scale={scale}"])
            yield f"{experiment} {scale}", read_config(raw)


if __name__ == "__main__":
    found = {name: recipe_fingerprint(config) for name, config in recipes()}
    FROZEN.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
