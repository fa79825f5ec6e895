"""Rows as runs leave them, thinning that keeps what matters, bands that equal numpy's."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.curves import AXES, Curve, band, curve, read_rows, read_run, thin, thinned


def write(path, rows, end=b""):
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows) + end)
    return path


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


class TestRows:
    @pytest.mark.parametrize("torn", [b"", b'{"step": 3, "tra', b"\x00\x00", b'{"step": 3', b"[1]"])
    def test_are_read_without_a_torn_last_line(self, tmp_path, torn):
        rows = [training(1, 2.0), training(2, 1.5)]
        assert read_rows(write(tmp_path / "m", rows, torn)) == rows

    @pytest.mark.parametrize("bad", ["[1]", '{"x": 1}', "{", '{"step": 1, "x": "much"}', ""])
    def test_that_are_none_are_named(self, tmp_path, bad):
        path = tmp_path / "m"
        path.write_text(f'{{"step": 1}}\n{bad}\n{{"step": 3}}\n')
        with pytest.raises(ValueError, match=r"/m: line 2 is not a row"):
            read_rows(path)

    def test_that_are_repeated_count_once_and_the_later_wins(self, tmp_path):
        first = [training(1, 3.0), training(2, 2.0), evaluation(2, 10.0), training(3, 9.0)]
        again = [training(2, 2.5), evaluation(2, 11.0), training(3, 1.0)]
        found = read_rows(write(tmp_path / "m", first + again))
        assert found == [first[0], *again]
        assert curve(found, "train/loss", "step").ys.tolist() == [3.0, 2.5, 1.0]
        assert curve(found, "val/top1", "step").ys.tolist() == [11.0]

    def test_keep_what_is_not_finite(self, tmp_path):
        rows = [{"step": 1, "a": "NaN", "b": "Infinity", "c": "-Infinity"}]
        (row,) = read_rows(write(tmp_path / "m", rows))
        assert math.isnan(row["a"])
        assert (row["b"], row["c"]) == (math.inf, -math.inf)

    def test_of_nothing(self, tmp_path):
        assert read_rows(write(tmp_path / "m", [])) == []


class TestCurve:
    def test_leaves_out_rows_without_the_metric_or_the_axis(self):
        rows = [training(1, 2.0), evaluation(1, 5.0), training(2, 1.0)]
        assert curve(rows, "train/loss", "units").xs.tolist() == [64, 128]
        assert curve(rows, "val/top1", "units").xs.tolist() == []
        for axis in AXES:
            assert curve(rows, "train/loss", axis).ys.tolist() == [2.0, 1.0]

    def test_has_only_known_axes(self):
        with pytest.raises(ValueError, match="step, epoch, units, wall_s, not 'time'"):
            curve([], "train/loss", "time")

    def test_knows_its_best(self):
        assert made([1, 3, math.nan, 2]).best(True) == 1
        assert made([1, 3, math.nan, 0]).best(False) == 3
        assert made([1.0]).best(None) is None
        assert made([math.nan]).best(True) is None


class TestThin:
    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300),
        st.integers(4, 80),
        st.sampled_from(["val/top1", "train/loss"]),
    )
    def test_keeps_ends_and_extremes(self, ys, points, metric):
        whole = made(ys, metric=metric)
        found = thin(whole, points)
        assert len(found.xs) <= max(points, min(len(ys), points))
        assert (found.xs[0], found.xs[-1]) == (whole.xs[0], whole.xs[-1])
        assert (found.ys[0], found.ys[-1]) == (whole.ys[0], whole.ys[-1])
        assert (found.ys.min(), found.ys.max()) == (whole.ys.min(), whole.ys.max())
        assert (np.diff(found.xs) >= 0).all()

    def test_never_averages_an_evaluation(self):
        whole = made(np.random.default_rng(0).normal(size=500))
        pairs = set(zip(whole.xs, whole.ys, strict=True))
        found = thin(whole)
        assert set(zip(found.xs, found.ys, strict=True)) <= pairs
        assert len(found.xs) >= 50
        assert np.diff(found.xs).max() <= 2 * 500 / 56

    def test_averages_a_training_loss(self):
        """Noise that alternates would be all up or all down in every tenth point."""
        noise = np.resize([1.0, -1.0], 1000)
        found = thin(made(5 + noise, metric="train/loss"))
        inner = [y for y in found.ys if y not in (4.0, 6.0)]
        assert len(inner) > 50
        assert np.abs(np.array(inner) - 5).max() < 0.15

    def test_leaves_a_short_curve_alone(self):
        whole = made(range(60))
        assert thin(whole) is whole

    def test_needs_room_for_what_it_keeps(self):
        with pytest.raises(ValueError, match="at least 4 points, not 3"):
            thin(made([1, 2]), 3)


class TestBand:
    def test_of_equal_points_equals_numpy(self):
        values = np.random.default_rng(1).normal(size=(5, 40))
        found = band([made(ys) for ys in values])
        assert np.array_equal(found.mean, values.mean(axis=0))
        assert np.array_equal(found.sd, values.std(axis=0, ddof=1))
        assert found.n == 5

    def test_of_other_points_is_interpolated_where_all_have_some(self):
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
    def test_that_can_not_be(self, curves, message):
        with pytest.raises(ValueError, match=message):
            band(curves)


class TestRun:
    def make(self, tmp_path, text="run_id: a/b-f-s0\nconfig: {optimizer: {name: sgd, lr: 0.1}}\n"):
        (tmp_path / "run.yaml").write_text(text)
        return read_run(tmp_path)

    def test_is_unfinished_until_it_says_otherwise(self, tmp_path):
        assert not self.make(tmp_path).is_finished
        (tmp_path / "status.json").write_text('{"status": "finished"}')
        assert self.make(tmp_path).is_finished
        assert self.make(tmp_path).read() == []

    def test_knows_its_values_by_their_keys(self, tmp_path):
        run = self.make(tmp_path)
        assert [run.value(k) for k in ("optimizer", "optimizer.lr", "x")] == ["sgd", "0.1", None]
        assert run.value("optimizer.lr.deeper") is None
        assert run.full_key("optimizer") == "optimizer.name"
        assert run.all_keys() == ["optimizer", "optimizer.name", "optimizer.lr"]

    @pytest.mark.parametrize("text", ["[", "", "3", "run_id: a", "run_id: a\nconfig: 3"])
    def test_that_is_none_is_named(self, tmp_path, text):
        with pytest.raises(ValueError, match=r"run\.yaml is not a run's"):
            self.make(tmp_path, text)


def test_a_records_curves_have_the_same_steps_whatever_the_values():
    def rows(seed: int) -> list[dict[str, float]]:
        draw = np.random.default_rng(seed)
        logged = [{"step": s, "epoch": s / 7, "train/loss": draw.random()} for s in range(1, 501)]
        return logged + [{"step": s, "epoch": s / 7, "val/top1": float(s)} for s in (250, 500)]

    one, other = (thinned(rows(seed)) for seed in (0, 1))
    assert set(one) == {"train/loss", "val/top1"}
    assert one["train/loss"]["step"] == other["train/loss"]["step"]
    assert len(one["train/loss"]["step"]) == 60
    assert one["val/top1"] == {"step": [250, 500], "epoch": [35.7143, 71.4286], "value": [250, 500]}
    means = [row["train/loss"] for row in rows(0) if "train/loss" in row]
    assert np.mean(means[:9]) == pytest.approx(one["train/loss"]["value"][0], rel=1e-5)
