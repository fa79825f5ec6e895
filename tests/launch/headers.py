"""`python -m tests.launch.headers`: rewrites what is computed in the experiments' headers.

The header of an experiment's file ends with three indented lines: what the paper reached, how long
the run takes on eight GPUs, and the command.
"""

from __future__ import annotations

from pathlib import Path

from analysis.paper import read_paper
from engine.formats import format_hours
from launch.compose import CONFIGS, options_of
from launch.estimate import Estimator
from launch.run_spec import make_run_spec

HARDWARE = "dgx1"  # the paper's: eight V100s


def header_lines(experiment: str, estimator: Estimator) -> list[str]:
    """The computed end of a header."""
    overrides = [f"experiment={experiment}", "scale=paper", f"hardware={HARDWARE}"]
    spec = make_run_spec(overrides, need_data=False)
    hardware = spec.config.hardware
    hours = estimator.hours(spec)
    where = f"{hardware.processes} GPUs at {hardware.tflops:g} TFLOP/s each (hardware={HARDWARE})"
    return [
        f"#   {paper_line(experiment)}",
        f"#   {f'about {format_hours(hours)}' if hours else 'hours not counted'} on {where}",
        f"#   python -m scripts.launch experiment={experiment}",
    ]


def paper_line(experiment: str) -> str:
    for row in (row for table in read_paper() for row in table.rows):
        if experiment in (row.experiment, row.rerun):
            metrics = ", ".join(f"{name} {value:.2f}" for name, value in row.metrics.items())
            return f"{'cited by the paper' if row.cited else 'the paper'}: {metrics or 'no number'}"
    return "not a row of the paper"


def path_of(experiment: str) -> Path:
    return CONFIGS / "experiment" / f"{experiment}.yaml"


def rewritten(text: str, lines: list[str]) -> str:
    """A file with these lines instead of the indented comments of its header."""
    head, body = [], text.splitlines()
    while body and body[0].startswith("#"):
        head.append(body.pop(0))
    kept = [line for line in head if not line.startswith("#   ")]
    return "\n".join([*kept, *lines, *body]) + "\n"


if __name__ == "__main__":
    estimator = Estimator([])
    for name in options_of("experiment"):
        path = path_of(name)
        path.write_text(rewritten(path.read_text(), header_lines(name, estimator)))
