"""Builds the CPU kernels ahead of their first use.

    python -m scripts.build_kernels

Exit status: 0, also without a compiler.
"""

from __future__ import annotations

import subprocess
import sys

from launch.command_line import CommandLine


def main() -> int:
    """Never fails: without the kernels everything works, NovoGrad's step on a CPU more slowly."""
    CommandLine("build_kernels", __doc__).read()
    from optim import native  # torch: after the command line

    try:
        native.build()
    except (OSError, RuntimeError, subprocess.SubprocessError) as problem:
        print(f"no native CPU kernels ({problem}); torch's fused SGD kernel is used instead")
    else:
        print("native CPU kernels: built")
    return 0


if __name__ == "__main__":
    sys.exit(main())
