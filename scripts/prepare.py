"""Prepares the data of a task; see docs/data.md.

    python -m scripts.prepare imagenet --from /downloads

Sources are never written to. Rerun the same command to resume.

Exit status: 0 ready · 2 bad data, no space or no permission · 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from launch.command_line import CommandLine, reports
from tasks.base import DataProblem
from tasks.meter import Meter
from tasks.preparing import DATA_SETS, Options, describe, prepare_task
from tasks.small import MINI, SMALL, prepare_mini, prepare_small


@reports(DataProblem)
def main(arguments: list[str] | None = None) -> int:
    """Makes one data set; never a traceback for what a user or a disk can get wrong."""
    options = _parser().read(arguments)
    data, sources = options.data, options.sources
    try:
        with Meter() as meter:
            if options.command == "mini":
                prepare_mini(data, options.only, meter.say)
            elif options.command == "small":
                for name in options.set:
                    prepare_small(name, data, sources, meter, meter.say)
            else:
                wanted = Options(data, sources, options.subsets, options.news_commentary)
                prepare_task(options.command, wanted, meter, meter.say)
    except OSError as error:
        print(describe(error, data), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; run the same command to resume", file=sys.stderr)
        return 130
    return 0


def _parser() -> CommandLine:
    parser = CommandLine("prepare", __doc__)
    parser.set_defaults(sources=(), subsets=(), news_commentary="v11")  # where there is no option
    commands = parser.add_subparsers(
        dest="command",
        required=True,
        metavar="TASK|small|mini",
        parser_class=argparse.ArgumentParser,
    )
    for name in (*DATA_SETS, "small", "mini"):
        sub = commands.add_parser(name)
        sub.add_argument("--data", type=Path, default=Path("data"), help="data root; default: data")
        if name == "mini":
            sub.add_argument("--only", choices=list(MINI), help="only the sets of this task")
            continue
        what = "files, folders or hf://owner/name (default: download)"
        sub.add_argument("--from", dest="sources", nargs="+", default=(), help=what)
        if name == "librispeech":
            sub.add_argument("--subsets", nargs="+", default=(), help="e.g. dev-clean")
        if name == "wmt14":
            sub.add_argument("--news-commentary", choices=["v11", "v9"], default="v11")
        if name == "small":
            sub.add_argument("--set", nargs="+", required=True, choices=list(SMALL))
    return parser


if __name__ == "__main__":
    sys.exit(main())
