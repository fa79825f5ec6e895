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


def recipes(*, every_scale: bool = True) -> Iterator[tuple[str, RunConfig]]:
    """By `experiment scale`; or at the paper's scale and, by turns, at one of the others."""
    others = [scale for scale in SCALES if scale != "paper"]
    for place, experiment in enumerate(options_of("experiment")):
        by_turns = ["paper", others[place % len(others)]]
        for scale in SCALES if every_scale else by_turns:
            raw = compose([f"experiment={experiment}", f"scale={scale}"])
            yield f"{experiment} {scale}", read_config(raw)


if __name__ == "__main__":
    found = {name: recipe_fingerprint(config) for name, config in recipes()}
    FROZEN.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
