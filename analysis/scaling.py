"""docs/scaling.md: how costs grow with processes, tensors, lengths and data, from two records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis.performance import environment_line, read_bench
from analysis.summaries import NOT_RUN
from analysis.templating import render_markdown

WORLDS = (1, 8, 64, 256, 1024)
FEW = 1_000_000  # items that are measured; more are extrapolated
MANY = 100_000_000
Row = dict[str, Any]


def gradient_bytes(row: Row) -> int:
    """float32, once a step whatever the accumulation."""
    return 4 * int(row["parameters"])


def ring_bytes(row: Row, world: int) -> float:
    """What a process sends in a step: 2 (W - 1) / W of the gradients."""
    return 2 * (world - 1) / world * gradient_bytes(row)


def collectives(row: Row, world: int) -> int:
    """All-reduces of a step: DDP's buckets, and one for loss, weight and stop signals."""
    return int(row["buckets"]) + 1 if world > 1 else 0


def checkpoint_bytes(row: Row, world: int, moments: int = 1) -> int:
    """Weights, moments (NovoGrad: 1, Adam: 2), everybody's batch-norm statistics, and memories."""
    weights = (1 + moments) * gradient_bytes(row) + 4 * int(row["tensors"])
    return weights + world * int(row["buffer_bytes"]) + int(row["carry_bytes"])


def read_at_start(row: Row, world: int) -> int:
    """Every process reads the checkpoint that it resumes."""
    return world * checkpoint_bytes(row, world)


def evaluation_bytes(row: Row, world: int) -> int:
    """What an evaluation reduces: batch-norm statistics in float64."""
    return 8 * int(row["averaged_numbers"]) if world > 1 else 0


COSTS = (gradient_bytes, ring_bytes, collectives, checkpoint_bytes, read_at_start, evaluation_bytes)


def render_scaling(folder: Path) -> str:
    """`docs/scaling.md`; sections without a record say so."""
    paths = {name: folder / f"{name}.json" for name in ("scaling", "growth")}
    found = {name: read_bench(path) for name, path in paths.items() if path.exists()}
    counted = found["scaling"].detail if "scaling" in found else None
    return render_markdown(
        "scaling.md.j2",
        counted=counted,
        alike=counted and len({str(step | {"world": 0}) for step in counted["steps"]}) == 1,
        most=counted and max(row["micro_batches"] for row in counted["rows"]),
        grown=found["growth"].detail if "growth" in found else None,
        environment=environment_line(found["growth"]) if "growth" in found else None,
        cost={cost.__name__: cost for cost in COSTS},
        worlds=WORLDS,
        few=FEW,
        many=MANY,
        not_run=NOT_RUN,
    )
