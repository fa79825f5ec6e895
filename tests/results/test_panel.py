"""A study's curves as one picture."""

from __future__ import annotations

from xml.etree import ElementTree

from results.claims import Chart, Line
from results.panel import draw_panel
from results.svg import WIDTH

SVG = "{http://www.w3.org/2000/svg}"


def chart(title: str, *labels: str, x: tuple[float, ...] = (0.1, 1.0, 10.0)) -> Chart:
    lines = tuple(Line(label, x, tuple(2.0 * value for value in x)) for label in labels)
    return Chart(title, "rate", "top-1 < 100", lines, log_x=True)


def texts(picture: str, kind: str) -> list[str | None]:
    root = ElementTree.fromstring(picture)
    return [element.text for element in root.iter(f"{SVG}text") if element.get("class") == kind]


def test_all_charts_below_one_legend():
    charts = [chart("one & two", "Adam", "NovoGrad"), chart("b", "SGD"), chart("c", "NovoGrad")]
    picture = draw_panel(charts)
    assert texts(picture, "title") == ["one & two", "b", "c"]
    assert texts(picture, "label") == ["SGD", "Adam", "NovoGrad"]  # the order of all tables
    root = ElementTree.fromstring(picture)
    assert float(root.get("width", "0")) > 2 * WIDTH
    alone = ElementTree.fromstring(draw_panel(charts[:1]))
    assert float(alone.get("width", "0")) < 2 * WIDTH
    assert float(alone.get("height", "0")) < float(root.get("height", "0"))


def test_numbers_along_an_axis_do_not_overlap():
    picture = draw_panel([chart("a", "Adam", x=(0.316, 1.0, 3.16, 3.1646, 10.0))])
    assert texts(picture, "tick mid") == ["0.316", "1", "3.16", "10"]


def test_optimizers_keep_their_colours_beside_other_lines():
    def colours(*charts: Chart) -> list[str | None]:
        root = ElementTree.fromstring(draw_panel(charts))
        paths = [element for element in root.iter(f"{SVG}path") if element.get("d") == "M1 4H21"]
        return [path.get("style") for path in paths]

    sgd, ours = colours(chart("a", "SGD", "NovoGrad"))
    assert colours(chart("a", "weights alike", "NovoGrad"), chart("b", "SGD"))[:2] == [sgd, ours]
