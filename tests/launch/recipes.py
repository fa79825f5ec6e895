"""`python -m tests.launch.recipes`: freezes the fingerprints of all experiments at all scales.

A recipe's fingerprint is part of its runs' ids. Run this after a change that is meant to change
recipes, and commit the difference, which then shows which ones.
"""

from __future__ import annotations

import json
from pathlib import Path

from engine.config import SCALES, read_config, recipe_fingerprint
from launch.compose import compose, options_of

FROZEN = Path(__file__).with_name("fingerprints.json")


def fingerprints() -> dict[str, str]:
    """By `experiment scale`."""
    return {
        f"{experiment} {scale}": recipe_fingerprint(
            read_config(compose([f"experiment={experiment}", f"scale={scale}"]))
        )
        for experiment in options_of("experiment")
        for scale in SCALES
    }


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(fingerprints(), indent=0, sort_keys=True) + "\n")
