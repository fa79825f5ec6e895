"""Studies as they are written to `studies/<name>.json`; results/claims.py reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from results.names import OPTIMIZERS
from results.quality import quality_name
from results.trials import Outcome

Study = dict[str, Any]


def line_of(name: str, points: Mapping[float, float | None]) -> dict[str, Any]:
    """A line in a chart, mostly an optimizer's; None where there is no number."""
    places = sorted(points)
    return {
        "label": OPTIMIZERS.get(name, name),
        "x": [float(f"{x:.6g}") for x in places],
        "y": [points[x] for x in places],
    }


def chart_of(
    data: str, x_label: str, metric: str, lines: list[dict[str, Any]], *, log_x: bool = False
) -> dict[str, Any]:
    """Lines of one data set; perplexities on a logarithmic axis."""
    name = quality_name(metric)
    return {
        "title": f"{data}: {name}",
        "x_label": x_label,
        "y_label": name,
        "log_x": log_x,
        "log_y": metric.endswith("/ppl"),
        "lines": lines,
    }


def study_of(
    name: str,
    verdict: str,
    summary: str,
    numbers: Mapping[str, Mapping[str, float]],
    charts: list[dict[str, Any]],
    outcomes: Sequence[Outcome],
) -> Study:
    """What is written down of a study (see results/claims.py)."""
    rounded = {
        key: {inner: float(f"{value:.6g}") for inner, value in values.items()}
        for key, values in numbers.items()
    }
    runs = sorted({one.run_id for one in outcomes if one.value is not None})
    return {
        "study": name,
        "verdict": verdict,
        "summary": summary,
        "numbers": rounded,
        "curves": charts,
        "records": runs,
    }
