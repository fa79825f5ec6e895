"""results/bench/<machine>/optim.md: every competitor on every parameter set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Row = dict[str, Any]
Cells = list[list[str]]

COLUMNS = (  # heading, key, format
    ("time ms", "median_ms", ".2f"),
    ("noise %", "noise_percent", ".0f"),
    ("/ AdamW", "to_adamw", ".2f"),
    ("/ ours", "to_ours", ".2f"),
    ("memory %", "extra_memory_percent", ".2f"),
    ("state", "state_bytes_per_parameter", ".2f"),
    ("GB/s", "gb_per_s", ".1f"),  # from here on not with clipping, whose traffic is another
    ("of limit %", "of_limit_percent", ".0f"),
)
NOTES = """\
Time: median of one step. Noise: its interquartile range, as a share of it. / AdamW, / ours: time
over that of torch's fused AdamW and of our default, median over rounds. Memory: the most that torch
allocates inside the step, in % of the parameters' size. State: bytes per parameter. GB/s: at 24
bytes per fp32 parameter for NovoGrad, 20 for SGD, 28 for Adam, the least that other methods need,
and in % of what an update in place reaches (a = a + s b, 12 bytes per element, arrays that no cache
holds); a gradient whose second reading finds it in a cache passes it. Without noise: timed in one
round only. On the largest set and in half precision some are left out, and without FULL=1 the forms
that matter less."""


def blocks(data: Row) -> Iterator[str | Cells]:
    """The report in order: headings (with #), paragraphs and tables."""
    yield f"# Optimizer steps on the CPU, {data['date']}"
    packages = ", ".join(map(" ".join, data["packages"].items()))
    yield f"{data['threads']} threads; our kernels: {data['kernels']}; {packages}."
    yield NOTES
    for name, found in data["sets"].items():
        yield f"## {name}: {found['tensors']:,} tensors, {found['parameters']:,} parameters"
        yield f"{found['rounds']} rounds; updates in place at {found['limit_gb_per_s']} GB/s."
        yield table(found["step"], COLUMNS)
        if "clip_and_step" in found:
            yield "Clip by global norm, then step:"
            yield table(found["clip_and_step"], COLUMNS[:-2])
    middle, worst = data["noise_percent"]["median"], data["noise_percent"]["worst"]
    kind = "A quiet run" if middle < 10 else "A noisy run, better repeated on an idle machine"
    yield f"{kind}: noise {middle} % in the middle row, {worst} % in the worst."


def table(rows: list[Row], columns: Sequence[tuple[str, str, str]]) -> Cells:
    """The header and the rows."""
    cells = [["", *(heading for heading, _, _ in columns)]]
    for row in rows:
        name = row["name"] if row["status"] == "timed" else f"{row['name']}: {row['status']}"
        values = [format(row[key], form) if key in row else "-" for _, key, form in columns]
        cells.append([name, *values])
    return cells


def rendered(block: str | Cells, markdown: bool) -> str:
    """A block as Markdown or plain text; the first column stands to the left, others right."""
    if isinstance(block, str):
        return block if markdown else block.lstrip("# ")
    first, *rest = (max(map(len, column)) for column in zip(*block, strict=True))
    rule = ["-" * first, *("-" * (width - 1) + (":" if markdown else "-") for width in rest)]
    rows = [block[0], rule, *block[1:]]
    lines = [[row[0].ljust(first), *map(str.rjust, row[1:], rest)] for row in rows]
    return "\n".join(f"| {' | '.join(c)} |" if markdown else "  ".join(c).rstrip() for c in lines)
