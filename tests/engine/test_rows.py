"""metrics.jsonl: rows as runs leave them, and the thinned curves of a record."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from engine.rows import mean_update_ratios, read_rows, sort_rows, thin_curves


def write(path, rows, end=b""):
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows) + end)
    return path


def training(step, loss):
    return {"step": step, "epoch": step / 10, "units": step * 64, "wall_s": step / 2} | {
        "train/loss": loss
    }


def evaluation(step, top1):
    return {"step": step, "epoch": step / 10, "wall_s": step / 2 + 0.1, "val/top1": top1}


class TestRows:
    @pytest.mark.parametrize("torn", [b"", b'{"step": 3, "tra', b"\x00\x00", b'{"step": 3', b"[1]"])
    def test_a_torn_last_line_is_left_out(self, tmp_path, torn):
        rows = [training(1, 2.0), training(2, 1.5)]
        assert read_rows(write(tmp_path / "m", rows, torn)) == rows

    @pytest.mark.parametrize("bad", ["[1]", '{"x": 1}', "{", '{"step": 1, "x": "much"}', ""])
    def test_damaged_ones_are_named(self, tmp_path, bad):
        path = tmp_path / "m"
        path.write_text(f'{{"step": 1}}\n{bad}\n{{"step": 3}}\n')
        with pytest.raises(ValueError, match=r"/m: line 2 is not a row"):
            read_rows(path)

    def test_of_repeated_steps_the_last_count(self, tmp_path):
        first = [training(1, 3.0), training(2, 2.0), evaluation(2, 10.0), training(3, 9.0)]
        again = [training(2, 2.5), evaluation(2, 11.0), training(3, 1.0)]
        found = sort_rows(read_rows(write(tmp_path / "m", first + again)))
        assert found == [first[0], *again]

    def test_may_hold_values_that_are_not_finite(self, tmp_path):
        rows = [{"step": 1, "a": "NaN", "b": "Infinity", "c": "-Infinity"}]
        (row,) = read_rows(write(tmp_path / "m", rows))
        assert math.isnan(row["a"])
        assert (row["b"], row["c"]) == (math.inf, -math.inf)

    def test_of_an_empty_file(self, tmp_path):
        assert read_rows(write(tmp_path / "m", [])) == []


def test_of_telemetry_a_record_keeps_mean_update_ratios():
    rows = [
        {"step": 1, "train/loss": 2.0, "optimizer/update_ratio/head": 0.25},
        {"step": 2, "train/loss": 1.0},
        {
            "step": 3,
            "optimizer/update_ratio/head": 0.75,
            "optimizer/update_ratio/body": 0.5,
            "optimizer/gradient_norm/head": 7.0,
        },
    ]
    expected = {"optimizer/update_ratio/body": 0.5, "optimizer/update_ratio/head": 0.5}
    assert mean_update_ratios(rows) == expected
    assert mean_update_ratios(rows[1:2]) == {}


def test_the_curves_of_all_seeds_have_the_same_steps():
    def rows(seed: int) -> list[dict[str, float]]:
        draw = np.random.default_rng(seed)
        logged = [{"step": s, "epoch": s / 7, "train/loss": draw.random()} for s in range(1, 501)]
        return logged + [{"step": s, "epoch": s / 7, "val/top1": float(s)} for s in (250, 500)]

    one, other = (thin_curves(rows(seed)) for seed in (0, 1))
    assert set(one) == {"train/loss", "val/top1"}
    assert one["train/loss"]["step"] == other["train/loss"]["step"]
    assert len(one["train/loss"]["step"]) == 60
    assert one["val/top1"] == {"step": [250, 500], "epoch": [35.7143, 71.4286], "value": [250, 500]}
    means = [row["train/loss"] for row in rows(0) if "train/loss" in row]
    assert np.mean(means[:9]) == pytest.approx(one["train/loss"]["value"][0], rel=1e-5)
