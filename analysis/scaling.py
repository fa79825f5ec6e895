"""docs/scaling.md: how costs grow with processes, tensors, lengths and data, from two records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis.performance import environment_line, read_bench
from analysis.summaries import NOT_RUN
from analysis.templating import render_markdown
from engine.formats import format_number

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


def render_scaling(folder: Path) -> str:
    """`docs/scaling.md`; sections without a record say so."""
    found = {
        name: read_bench(folder / f"{name}.json")
        for name in ("scaling", "growth")
        if (folder / f"{name}.json").exists()
    }
    counted = found["scaling"].detail if "scaling" in found else None
    grown = found["growth"].detail if "growth" in found else None
    return render_markdown(
        "scaling.md.j2",
        rows=row_cells(counted["rows"]) if counted else None,
        worlds=world_cells(counted["rows"]) if counted else None,
        step=step_text(counted["steps"]) if counted else None,
        most=max(row["micro_batches"] for row in counted["rows"]) if counted else None,
        models=model_cells(grown["models"]) if grown else None,
        tensors=tensor_cells(grown["tensors"]) if grown else None,
        lengths=length_cells(grown["lengths"]) if grown else None,
        items=item_cells(grown["items"]) if grown else None,
        environment=environment_line(found["growth"]) if grown else None,
        not_run=NOT_RUN,
    )


def row_cells(rows: list[Row]) -> list[list[str]]:
    """A line for each row of the paper."""
    return [
        [
            row["experiment"],
            f"{row['parameters']:,}",
            str(row["micro_batches"]),
            size(gradient_bytes(row)),
            str(collectives(row, 2)),
            size(checkpoint_bytes(row, 8)),
            size(checkpoint_bytes(row, 8, moments=2)),
        ]
        for row in rows
    ]


def world_cells(rows: list[Row]) -> list[list[str]]:
    """Formulas in numbers, for each number of processes that the row's batch allows."""
    lines = []
    for row in rows:
        for world in WORLDS:
            if world > row["micro_batches"]:
                lines.append(
                    [row["experiment"], f"{world:,}", "more than micro-batches", *["–"] * 4]
                )
                break
            lines.append(
                [
                    row["experiment"],
                    f"{world:,}",
                    size(ring_bytes(row, world)),
                    str(collectives(row, world)),
                    size(evaluation_bytes(row, world)),
                    size(checkpoint_bytes(row, world)),
                    size(read_at_start(row, world)),
                ]
            )
    return lines


def step_text(steps: list[Row]) -> str:
    """What the fake back end counted."""
    first = steps[0]
    extra = first["bytes"] - first["gradient_bytes"]
    same = all({**step, "world": 0} == {**first, "world": 0} for step in steps)
    worlds = ", ".join(f"{step['world']:,}" for step in steps)
    kind = "the same" if same else "not the same"
    return (
        f"Counted for {worlds} processes with an accumulation of 2: {kind} in all, "
        f"{first['collectives']} all-reduces of the gradients' {first['gradient_bytes']:,} bytes "
        f"and {extra} more, for a model of {first['gradient_bytes'] // 4:,} parameters."
    )


def model_cells(rows: list[Row]) -> list[list[str]]:
    """Time and memory of a step by the size of the model."""
    return [
        [
            f"{row['layers']} × {row['width']}",
            f"{row['parameters']:,}",
            format_number(row["ms"], 3),
            format_number(1e6 * row["ms"] / row["parameters"], 3),
            size(1e6 * row["kept_mb"]),
            size(1e6 * row["step_mb"]),
        ]
        for row in rows
    ]


def tensor_cells(rows: list[Row]) -> list[list[str]]:
    """Milliseconds by the number of tensors."""
    return [
        [
            f"{row['tensors']:,}",
            format_number(row["novograd_ms"], 3),
            format_number(row["adamw_ms"], 3),
            format_number(1e3 * row["novograd_ms"] / row["tensors"], 2),
        ]
        for row in rows
    ]


def length_cells(rows: list[Row]) -> list[list[str]]:
    """Tokens per second by length."""
    return [
        [str(row["length"]), format_number(row["ms"], 3), format_number(row["tokens_per_s"], 3)]
        for row in rows
    ]


def item_cells(rows: list[Row]) -> list[list[str]]:
    """Seconds and bytes; those of 100 million items are 100 times those of a million."""
    lines = []
    for row in rows:
        lines.append([row["what"], f"{row['items']:,}", *_cost(row, 1), "measured"])
        if row["items"] == FEW:
            cost = _cost(row, MANY // FEW)
            lines.append([row["what"], f"{MANY:,}", *cost, "extrapolated"])
    return lines


def _cost(row: Row, times: int) -> list[str]:
    return [f"{format_number(times * row['seconds'], 2)} s", size(times * row["bytes"])]


def size(count: float) -> str:
    """Bytes with a decimal unit."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{format_number(count / factor, 3)} {unit}"
    return f"{count:.0f} B"
