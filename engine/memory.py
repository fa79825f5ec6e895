"""How a process on the CPU deals with memory that it has freed."""

from __future__ import annotations

import ctypes
import sys

# mallopt(3), malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST_INT, _LARGEST_MMAP_THRESHOLD = 2**31 - 1, 32 * 2**20


def keep_freed_memory() -> bool:
    """Keeps freed memory in the process; True where that could be arranged (glibc).

    A training step allocates and frees the same activations again and again. glibc hands large
    blocks back to the kernel, which must clear every page anew: a sixth of a small model's step.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    settings = ((_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD), (_TRIM_THRESHOLD, _LARGEST_INT))
    return all(mallopt(option, value) == 1 for option, value in settings)
