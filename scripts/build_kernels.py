"""`python -m scripts.build_kernels`: builds the CPU kernels ahead of their first use."""

from __future__ import annotations

import subprocess
import sys

from optim import native


def main() -> int:
    """Never fails: without the kernels everything works, NovoGrad's step on a CPU more slowly."""
    try:
        native.build()
    except (OSError, RuntimeError, subprocess.SubprocessError) as problem:
        print(f"no native CPU kernels ({problem}); torch's fused SGD kernel is used instead")
    else:
        print("native CPU kernels: built")
    return 0


if __name__ == "__main__":
    sys.exit(main())
