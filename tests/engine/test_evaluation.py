from __future__ import annotations

import math
import random
from fractions import Fraction

from engine.evaluation import add_up


def test_sums_do_not_depend_on_the_order():
    """They are the exact sum, rounded once."""
    draw = random.Random(0)
    parts = [{"loss": draw.uniform(-1, 1) * 10 ** draw.randrange(12)} for _ in range(200)]
    expected = float(sum(Fraction(part["loss"]) for part in parts))
    for _ in range(20):
        draw.shuffle(parts)
        assert add_up(parts) == {"loss": expected}


def test_a_diverged_models_sums_are_no_error():
    assert math.isnan(add_up([{"a": math.inf}, {"a": -math.inf}])["a"])
    assert add_up([{"a": 1.0}, {"b": 2.0}, {}]) == {"a": 1.0, "b": 2.0}
