"""Predicts with the model of a run, a checkpoint or an export.

    python -m scripts.predict exports/resnet50 photo.jpg

    imagenet      classifies image files: the five most likely classes
    librispeech   transcribes FLAC and WAV files of any sampling rate
    wmt14         translates lines of files or of standard input: unknown=replace
    wikitext103   continues the text of files or of standard input: words=50 temperature=0.8
                  top_k=40 top_p=0.9 seed=1; or scores it: score=true; tokenized=true

Each prediction is printed as soon as it is made. Overrides such as `data.beam=1` or
`hardware.device=cpu` change how; write a file name that contains = as ./name=….
Exit status: 0 all predicted · 1 some inputs were bad, see standard error · 2 all were bad.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from launch.command_line import CommandLine


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses, predicts."""
    parser = CommandLine("predict", __doc__)
    parser.add_model()
    parser.add_argument("arguments", nargs="*", metavar="FILE|key=value")
    parser.add_argument(
        "--batch", type=int, default=1, help="inputs at once: faster, printed later"
    )
    what = "print one JSON object per line"
    parser.add_argument("--json", dest="as_json", action="store_true", help=what)
    asked = parser.read(arguments)
    from launch.predict import run_predictions  # torch: after the command line

    return run_predictions(**vars(asked))


if __name__ == "__main__":
    sys.exit(main())
