"""Evaluates a model: of a run, a checkpoint or an export.

    python -m scripts.evaluate outputs/wmt14/RUN --split test data.beam=8

RUN is a run's folder or its id below outputs/. Without --split all splits of the run's final
evaluation are evaluated, and the numbers are those of the run's own evaluation, to the bit, on any
number of processes. Overrides change how and on what: `hardware.processes=2`, `paths.data=DIR`,
`data.folder=newstest2015`, `data.beam=8 data.length_penalty=0.6`, `data.eval_memory=1600`; and
`tracking=wandb` logs the evaluation to W&B, beside the run.

Writes evaluation-<what>.json beside the run, and touches nothing else of it.
Exit status: 0 evaluated · 1 a process failed · 2 bad input.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from launch.command_line import CommandLine


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses, evaluates."""
    parser = CommandLine("evaluate", __doc__)
    parser.add_model()
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--split", action="append", default=[], help="may be given several times")
    parser.add_argument(
        "--predictions",
        type=int,
        nargs="?",
        const=0,
        metavar="N",
        help="keep the first N predictions of each split; without N all",
    )
    parser.add_argument("--output", type=Path, help="the file to write instead")
    asked = parser.read(arguments)
    from launch.evaluate import run_evaluation  # torch: after the command line

    return run_evaluation(**vars(asked), command=sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
