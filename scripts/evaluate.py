"""Evaluates the model of a run, a checkpoint or an export.

    python -m scripts.evaluate outputs/wmt14/RUN --split test data.beam=8

RUN is a run's folder, or its id below outputs/. Without --split all splits of the run's final
evaluation are evaluated; the numbers are bit for bit those of the run's own evaluation, on any
number of processes. Overrides change the data and the protocol: `hardware.processes=2`,
`paths.data=DIR`, `data.folder=newstest2015`, `data.beam=8 data.length_penalty=0.6`,
`data.eval_memory=1600`; `tracking=wandb` logs the evaluation to W&B, next to the run.

Writes evaluation-<what>.json to the run's folder and changes nothing else there.
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
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="see above")
    parser.add_argument("--split", action="append", default=[], help="may be repeated")
    parser.add_argument(
        "--predictions",
        type=int,
        nargs="?",
        const=0,
        metavar="N",
        help="keep the first N predictions of each split, or all if N is not given",
    )
    parser.add_argument("--output", type=Path, help="write to this file instead")
    asked = parser.read(arguments)
    from launch.evaluate import run_evaluation  # torch: after the command line

    return run_evaluation(**vars(asked), command=sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
