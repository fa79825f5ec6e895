"""Curves along runs, their means over seeds, and runs as their folders have them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.curves import AXES, Curve, band, curve
from analysis.logged_runs import CompareProblem, read_logged_run


def training(step, loss):
    return {"step": step, "epoch": step / 10, "units": step * 64, "wall_s": step / 2} | {
        "train/loss": loss
    }


def evaluation(step, top1):
    return {"step": step, "epoch": step / 10, "wall_s": step / 2 + 0.1, "val/top1": top1}


def made(ys, xs=None, metric="val/top1"):
    ys = np.array(ys, dtype=float)
    xs = np.arange(1.0, len(ys) + 1) if xs is None else np.array(xs, dtype=float)
    return Curve(metric, "step", xs, ys)


class TestCurve:
    def test_leaves_out_rows_without_the_metric_or_the_axis(self):
        rows = [training(1, 2.0), evaluation(1, 5.0), training(2, 1.0)]
        assert curve(rows, "train/loss", "units").xs.tolist() == [64, 128]
        assert curve(rows, "val/top1", "units").xs.tolist() == []
        for axis in AXES:
            assert curve(rows, "train/loss", axis).ys.tolist() == [2.0, 1.0]

    def test_unknown_axes_are_refused(self):
        with pytest.raises(ValueError, match="step, epoch, units, wall_s, not 'time'"):
            curve([], "train/loss", "time")

    def test_finds_its_best_value(self):
        assert made([1, 3, math.nan, 2]).best(True) == 1
        assert made([1, 3, math.nan, 0]).best(False) == 3
        assert made([1.0]).best(None) is None
        assert made([math.nan]).best(True) is None


class TestBand:
    def test_of_common_points_equals_numpy(self):
        values = np.random.default_rng(1).normal(size=(5, 40))
        found = band([made(ys) for ys in values])
        assert np.array_equal(found.mean, values.mean(axis=0))
        assert np.array_equal(found.sd, values.std(axis=0, ddof=1))
        assert found.n == 5

    def test_is_interpolated_where_all_runs_have_points(self):
        """By hand: y = x and y = 3x, on [0, 4] and [1, 6], have the mean 2x on [1, 4]."""
        found = band([made([0, 2, 4], [0, 2, 4]), made([3, 9, 18], [1, 3, 6])])
        assert found.xs.tolist() == [1, 2, 3, 4]
        assert found.mean == pytest.approx(2 * found.xs)
        assert found.sd == pytest.approx(2 * found.xs / math.sqrt(2))

    def test_of_one_run_has_no_deviation(self):
        found = band([made([1, 2])])
        assert found.mean.tolist() == [1, 2]
        assert np.isnan(found.sd).all()

    @pytest.mark.parametrize(
        ("curves", "message"),
        [
            ([], "at least one"),
            ([made([1, 2]), made([1, 2], [5, 6])], "no step in common"),
            ([made([1]), made([1], metric="val/top5")], "one metric"),
            ([made([1]), made([])], "no values"),
        ],
    )
    def test_of_unlike_curves_is_refused(self, curves, message):
        with pytest.raises(ValueError, match=message):
            band(curves)


class TestRun:
    def make(
        self,
        tmp_path,
        text="run_id: a/b-f-s0\nfingerprint: f\nconfig: {optimizer: {name: sgd, lr: 0.1}}\n",
    ):
        (tmp_path / "run.yaml").write_text(text)
        return read_logged_run(tmp_path)

    def test_is_unfinished_without_a_status(self, tmp_path):
        assert not self.make(tmp_path).is_finished
        (tmp_path / "status.json").write_text('{"status": "finished"}')
        assert self.make(tmp_path).is_finished
        assert self.make(tmp_path).read() == []

    def test_finds_values_by_their_keys(self, tmp_path):
        run = self.make(tmp_path)
        assert [run.value(k) for k in ("optimizer", "optimizer.lr", "x")] == ["sgd", "0.1", None]
        assert run.value("optimizer.lr.deeper") is None
        assert run.full_key("optimizer") == "optimizer.name"
        assert run.all_keys() == ["optimizer", "optimizer.name", "optimizer.lr"]

    @pytest.mark.parametrize("text", ["[", "", "3", "run_id: a", "run_id: a\nconfig: 3"])
    def test_a_damaged_run_file_is_named(self, tmp_path, text):
        with pytest.raises(CompareProblem, match=r"run\.yaml is not a run file"):
            self.make(tmp_path, text)
