"""Builds, loads and calls `native.cpp`, the CPU kernels.

They are built once, in about a second, with whatever C++ compiler is found, and kept in the
user's cache directory under a name that follows the source, the compiler and the CPU. Their first
use builds them, or `build()` ahead of it. Where there is no compiler, or the build fails, each
call says so by returning None or False, and the caller takes another way.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from .memory import addresses

_LOG = logging.getLogger(__name__)
_SOURCE = Path(__file__).with_suffix(".cpp")
_FLAGS = ("-O3", "-march=native", "-std=c++17", "-fopenmp", "-fPIC", "-shared")
DTYPES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
}  # of the C++ source


class StepOptions(ctypes.Structure):
    """`NovoGradOptions` of the C++ source, field by field."""

    _fields_ = [
        ("lr", ctypes.c_double),
        ("beta1", ctypes.c_double),
        ("beta2", ctypes.c_double),
        ("eps", ctypes.c_double),
        ("weight_decay", ctypes.c_double),
        ("gradient_factor", ctypes.c_double),
        ("grad_averaging", ctypes.c_int32),
        ("amsgrad", ctypes.c_int32),
        ("decay_in_update", ctypes.c_int32),
        ("threads", ctypes.c_int32),
    ]


@functools.cache
def supports(dtype: torch.dtype) -> bool:
    """Whether the kernels are there, and know this dtype."""
    library = _library()
    if library is None or dtype not in DTYPES:
        return False
    return bool(library.novograd_squared_norms(DTYPES[dtype], 0, None, None, None, 1) == 0)


def squared_norms(tensors: Sequence[Tensor]) -> Tensor | None:
    """Squared norms of contiguous CPU tensors as a float64 vector; None if the kernels can't."""
    if not all(map(Tensor.is_contiguous, tensors)):
        raise ValueError("the kernel reads contiguous tensors only")
    result = torch.empty(len(tensors), dtype=torch.float64)
    for dtype in {t.dtype for t in tensors}:
        where = [i for i, t in enumerate(tensors) if t.dtype == dtype]
        chosen = [tensors[i] for i in where]
        pointers = addresses(chosen) if supports(dtype) else None
        if pointers is None:
            return None
        part = (
            result if len(where) == len(tensors) else torch.empty(len(where), dtype=torch.float64)
        )
        library, numels = _library(), array("q", map(Tensor.numel, chosen))
        assert library is not None
        library.novograd_squared_norms(
            DTYPES[dtype],
            len(chosen),
            _address(numels),
            _address(pointers),
            part.data_ptr(),
            torch.get_num_threads(),
        )
        if part is not result:
            result[where] = part
    return result


class TensorTable:
    """Readable, dense CPU tensors of one dtype as the kernel wants them: sizes, addresses."""

    def __init__(
        self,
        params: Sequence[Tensor],
        exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor],
        max_exp_avg_sqs: Sequence[Tensor],
    ) -> None:
        self.tensors = tuple(map(list, (params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)))
        self.addresses = tuple(map(addresses, self.tensors))
        self.numels = array("q", map(Tensor.numel, params))
        self.dtype = params[0].dtype
        self.seen = torch.empty(len(params), dtype=torch.float64)  # squared norms of the last step

    def step(
        self,
        gradients: array[int] | None,
        squared_norms: Tensor | None,
        gradient_factors: Tensor | None,
        options: StepOptions,
    ) -> bool:
        """One step; False, and nothing done, where there is no memory to read.

        `gradients` are addresses of tensors that are laid out like their parameters; the vectors,
        where given, are contiguous, in float64 and on the CPU.
        """
        library = _library()
        norms, factors = _vector_address(squared_norms), _vector_address(gradient_factors)
        if gradients is None or norms is None or factors is None:
            return False
        params, exp_avgs, exp_avg_sqs, max_exp_avg_sqs = self.addresses
        if params is None or exp_avgs is None or exp_avg_sqs is None or max_exp_avg_sqs is None:
            return False
        assert library is not None
        options.threads = torch.get_num_threads()
        library.novograd_step(
            DTYPES[self.dtype],
            len(params),
            _address(self.numels),
            _address(params),
            _address(gradients),
            _address(exp_avgs),
            _address(exp_avg_sqs),
            _address(max_exp_avg_sqs) if max_exp_avg_sqs else None,
            norms or None,
            factors or None,
            self.seen.data_ptr(),
            ctypes.byref(options),
        )
        return True


def _vector_address(vector: Tensor | None) -> int | None:
    """0 for no vector, None for one that can't be read."""
    found = addresses([] if vector is None else [vector])
    return None if found is None else sum(found)


def _address(values: array[int]) -> int:
    """Valid as long as `values` is: keep it in a variable until the call is over."""
    return values.buffer_info()[0]


@functools.cache
def locator() -> Callable[..., int] | None:
    """`novograd_locate`, which keeps Python's lock and raises its exceptions."""
    library = _library()
    if library is None:
        return None
    found = ctypes.PyDLL(library._name).novograd_locate
    integer, size, pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
    found.argtypes = [pointer, size, pointer, integer, pointer, pointer, pointer]
    return found


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(build()))
    except (OSError, RuntimeError, subprocess.SubprocessError) as problem:
        _LOG.info("no native CPU kernels, torch's own are used: %s", problem)
        return None
    integer, size, pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
    library.novograd_squared_norms.argtypes = [integer, size, pointer, pointer, pointer, integer]
    library.novograd_step.argtypes = [integer, size, *[pointer] * 10]
    return library


def build() -> Path:
    """The shared library, built if it is not there; raises where it can't be."""
    compiler = _compiler()
    target = cache_directory() / f"native-{_fingerprint(compiler)}.so"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, scratch = tempfile.mkstemp(dir=target.parent, suffix=".so")
    os.close(handle)
    try:
        command = [*compiler, *_FLAGS, str(_SOURCE), "-o", scratch]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)} failed: {done.stderr.strip()[:500]}")
        Path(scratch).chmod(0o755)
        Path(scratch).replace(target)  # atomic: ranks that build at once all end with a whole file
    finally:
        Path(scratch).unlink(missing_ok=True)
    return target


def cache_directory() -> Path:
    """Where builds are kept: $XDG_CACHE_HOME/novograd, by default ~/.cache/…"""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "novograd"


def _compiler() -> list[str]:
    named = os.environ.get("CXX")
    if named:
        return shlex.split(named)
    for name in ("c++", "g++", "clang++"):
        found = shutil.which(name)
        if found:
            return [found]
    raise RuntimeError("no C++ compiler: none of c++, g++, clang++ found, CXX not set")


def _fingerprint(compiler: list[str]) -> str:
    """Of all that the binary depends on; -march=native makes the CPU one of these things."""
    done = subprocess.run(
        [*compiler, "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    parts = [_SOURCE.read_text(), shlex.join(_FLAGS), shlex.join(compiler), done.stdout]
    return hashlib.sha256("\0".join([*parts, _cpu()]).encode()).hexdigest()[:16]


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    kinds = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))
