"""Charts: one colour for an optimizer, small deterministic SVG with text, PNG by the same code."""

from __future__ import annotations

import io
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from analysis.charts import PALETTE, Chart, Line, Style, styles_of
from analysis.charts_draw import draw_panel, draw_png, draw_svg, tick_label

SVG = "{http://www.w3.org/2000/svg}"
X = (0.25, 1.0, 4.0)


def chart(*labels: str, title: str = "t", x: tuple[float, ...] = X, **looks) -> Chart:
    lines = tuple(Line(label, x, tuple(2.0 * v + i for v in x)) for i, label in enumerate(labels))
    return Chart(title, "rate", "top-1, %", lines, log_x=True, **looks)


def texts(svg: str) -> list[str | None]:
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def titles(svg: str) -> list[str | None]:
    return [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}title")]


class TestStyles:
    def of(self, *labels: str) -> list[Style]:
        return styles_of(chart(*labels).lines)

    def test_an_optimizer_has_one_colour_in_all_charts(self):
        assert self.of("SGD", "NovoGrad") == [Style(0, "solid"), Style(3, "solid")]
        assert self.of("NovoGrad, 90 epochs", "AdamW") == [Style(3, "solid"), Style(2, "solid")]
        assert self.of("something", "NovoGrad") == [Style(4, "solid"), Style(3, "solid")]

    def test_several_lines_of_an_optimizer_differ_in_their_dashes(self):
        found = self.of("NovoGrad, weights alike", "NovoGrad", "Adam", "NovoGrad, other")
        assert [style.colour for style in found] == [3, 3, 1, 3]
        assert [style.dash for style in found] == ["dashed", "solid", "solid", "dotted"]

    def test_lines_of_a_single_optimizer_have_colours_of_no_other(self):
        found = self.of(*(f"NovoGrad, batch {size}" for size in (512, 4096, 8192, 16384, 32768)))
        assert [style.colour for style in found] == [3, 4, 5, 6, 7]
        assert {style.dash for style in found} == {"solid"}

    def test_more_lines_than_colours_can_be_told_apart(self):
        found = self.of(*(f"line {i}" for i in range(12)))
        assert len(set(found)) == 12
        assert max(style.colour for style in found) < len(PALETTE)


class TestSvg:
    def test_has_text_values_and_css_colours(self):
        drawn = draw_svg(chart("SGD", "NovoGrad"))
        assert {"0.25", "1", "4", "rate", "top-1, %"} <= set(texts(drawn))  # few values: all ticks
        assert "SGD: 0.5 at 0.25" in titles(drawn)
        assert "NovoGrad: 9 at 4" in titles(drawn)
        assert "var(--line-0)" in drawn
        assert "var(--line-3)" in drawn
        assert "#0000" not in drawn  # no stand-in is left
        assert len(drawn) < 6_000

    def test_standard_deviations_are_bands(self):
        line = Line("a", (1.0, 2.0), (1.0, 2.0), (5.0, 1.0))
        drawn = draw_svg(Chart("t", "x", "y", (line,), log_y=True))
        assert "opacity: 0.15" in drawn
        assert "a: 1 ± 5 at 1" in titles(drawn)

    @pytest.mark.parametrize(
        ("line", "hint"),
        [
            (Line("a", (1.0,), (2.0,)), "a: 2 at 1"),
            (Line("a", (1.0,), (2.0,), (0.5,)), "a: 2 ± 0.5 at 1"),
            (Line("a", (1.0, 2.0), (None, None)), "a: not finite at 1"),
            (Line("a", (1.0, 2.0, 3.0), (1.0, None, 3.0)), "a: not finite at 2"),
        ],
    )
    @pytest.mark.parametrize("log_y", [False, True])
    def test_odd_lines_are_drawn(self, line, hint, log_y):
        drawn = draw_svg(Chart("t", "x", "y", (line,), log_y=log_y))
        assert hint in titles(drawn)
        assert "nan" not in drawn
        assert "inf" not in drawn

    def test_values_that_a_logarithmic_axis_lacks_are_left_out(self):
        drawn = draw_svg(Chart("t", "x", "y", (Line("a", (0.0, 1.0), (0.0, 5.0)),), log_y=True))
        assert titles(drawn) == ["a: 5 at 1"]

    def test_texts_are_shown_as_they_are(self):
        hostile = '<script> & $\\frac{$ \x01 "q"'
        drawn = draw_svg(chart(hostile, title=hostile))
        assert "<script" not in drawn
        assert any("<script> & $\\frac{$" in (title or "") for title in titles(drawn))
        assert draw_png(chart(hostile, "_a", title=hostile))

    def test_numbers_along_an_axis_do_not_overlap(self):
        drawn = draw_svg(chart("Adam", x=(0.316, 1.0, 3.16, 3.1646, 10.0)))
        assert "3.16" in texts(drawn)
        assert "3.165" not in texts(drawn)

    def test_tick_labels_are_short(self):
        numbers = (0, 0.001, 1e-5, 25000, -0.25, 0.1 + 0.2, 1e12)
        assert [tick_label(x) for x in numbers] == [
            *("0", "0.001", "1e-5", "25,000", "-0.25", "0.3", "1,000,000,000,000")
        ]


class TestPanel:
    def test_all_charts_below_one_legend(self):
        one, two = chart("Adam", "NovoGrad", title="one & two"), chart("SGD", title="b")
        picture = draw_panel([one, two, chart("NovoGrad", title="c")])
        shown = texts(picture)
        for names in (["one & two", "b", "c"], ["SGD", "Adam", "NovoGrad"]):
            assert [text for text in shown if text in names] == names  # each once, in this order
        assert "prefers-color-scheme: dark" in picture

    def test_a_long_legend_has_several_rows(self):
        names = [f"a data set with a long name, {i}" for i in range(8)]
        root = ElementTree.fromstring(draw_panel([chart(*names), chart("SGD", title="a chart")]))
        places = {
            t.text: (float(t.get("x", 0)), float(t.get("y", 0))) for t in root.iter(f"{SVG}text")
        }
        assert len({places[name][1] for name in names}) > 1
        assert max(places[name][0] + 7 * len(name) for name in names) < float(root.get("width", 0))
        assert max(places[name][1] for name in names) < places["a chart"][1]  # above the titles

    def test_grows_with_its_charts(self):
        def size(*charts: Chart) -> tuple[float, float]:
            root = ElementTree.fromstring(draw_panel(charts))
            return float(root.get("width", 0)), float(root.get("height", 0))

        alone, three = size(chart("SGD")), size(*[chart("SGD")] * 3)
        assert three[0] > 1.9 * alone[0]
        assert three[1] > 1.9 * alone[1]


def test_png_has_the_same_colours():
    picture = np.asarray(Image.open(io.BytesIO(draw_png(chart("SGD", "NovoGrad")))).convert("RGB"))
    colours = {f"#{r:02x}{g:02x}{b:02x}" for r, g, b in np.unique(picture.reshape(-1, 3), axis=0)}
    assert {PALETTE[0], PALETTE[3]} <= colours
    assert not {PALETTE[1], PALETTE[2]} & colours


def test_every_process_draws_the_same_bytes():
    source = (
        "from analysis.charts import *; from analysis.charts_draw import *; import hashlib\n"
        "a = Line('SGD', (1., 2., 3.), (1., None, 2.), (.1, 0., .2))\n"
        "chart = Chart('t', 'x', 'y', (a, Line('b', (1.,), (3.,))))\n"
        "drawn = draw_svg(chart) + draw_panel([chart] * 3)\n"
        "print(hashlib.sha256(drawn.encode() + draw_png(chart)).hexdigest())\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", source],
            env={"PYTHONHASHSEED": seed, "PATH": "", "SOURCE_DATE_EPOCH": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1] != ""
