"""The CUDA kernels without a GPU: their arithmetic in Triton's interpreter, their compilation."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (Linux only)"
)
ROOT = Path(__file__).parents[2]

# The interpreter is chosen when Triton is imported, so each part runs in a process of its own.
INTERPRETED = """
import torch
from optim import novograd_triton
from optim.norms import squared_norms
from optim.novograd_eager import Hyper, Tensors, single_tensor

dtype = getattr(torch, value)
moment = torch.float64 if dtype == torch.float64 else torch.float32
# The interpreter is slow: small blocks, so that small tensors have several, more than one sum has.
novograd_triton._BLOCK, novograd_triton._SUM_BLOCK = 256, 2
shapes = [(3, 4), (7,), (), (0,), (1100,)]
aligned = [(16,), (8, 64)]

def lists(values, amsgrad):
    state = [torch.zeros_like(p) for p in values]
    v = [torch.full((), -1.0, dtype=moment) for _ in values]
    v_max = [torch.zeros((), dtype=moment) for _ in values] if amsgrad else []
    return [p.clone() for p in values], state, v, v_max

def strided(g, i, writable):
    # The same gradient with gaps, expanded, or without any memory.
    if g.dim() == 0 or g.numel() == 0:
        return g
    if not g.any():
        return torch._efficientzerotensor(g.shape, dtype=dtype)
    if i % 2 == 0 or writable:
        return torch.stack([g, g + 1], dim=-1)[..., 0]
    return g[..., :1].expand(g.shape)

def compare(hyper, shapes, amsgrad=False, handed_over=False, scale=None, found_inf=None,
            odd=False):
    values = [torch.randn(s, dtype=torch.float64).to(dtype) for s in shapes]
    (p, m, v, vm), (q, n, u, um) = lists(values, amsgrad), lists(values, amsgrad)
    for step in range(3):
        grads = [torch.randn(s, dtype=torch.float64).to(dtype) for s in shapes]
        if step < 2:
            grads[1].zero_()
        if odd:
            grads = [strided(g, i, scale is not None) for i, g in enumerate(grads)]
        norms = squared_norms(grads)
        factors = torch.rand(len(shapes), dtype=torch.float64) + 0.5 if handed_over else None
        inner = factors
        if scale is not None:
            inner = torch.full((len(shapes),), 1.0 / scale.item(), dtype=torch.float64)
        if found_inf is None or found_inf.item() == 0:
            single_tensor(Tensors(p, grads, m, v, vm, norms, inner), hyper)
        given = norms if handed_over else None
        before = [g.clone() for g in grads]
        tensors = Tensors(q, grads, n, u, um, given, factors)
        seen = novograd_triton.step(tensors, hyper, scale, found_inf)
        assert (seen is None) == odd
        if seen is not None:
            torch.testing.assert_close(seen, norms if inner is None else norms * inner**2)
        for g, b in zip(grads, before):
            skipped = scale is None or found_inf is not None and found_inf.item()
            assert torch.equal(g, b if skipped else b / 4)
    # fp32 may differ by the rounding of fused multiply-adds; halves by one unit after rounding.
    bound = {torch.float64: 4e-16, torch.float32: 2.4e-7, torch.float16: 9.8e-4}[dtype]
    for a, b in zip([*p, *m], [*q, *n]):
        error = (a.double() - b.double()).abs() / a.double().abs().clamp(min=1.0)
        assert a.numel() == 0 or error.max() <= 3 * bound, (hyper, error.max())
    for a, b in zip([*v, *vm], [*u, *um]):
        assert abs(a.item() - b.item()) <= 1e-6 * abs(a.item())

torch.manual_seed(0)
for averaging, decay, maximize, amsgrad in (
    (False, "moment", False, False),
    (False, "update", True, True),
    (True, "moment", True, True),
    (True, "update", False, False),
):
    compare(Hyper(0.1, 0.9, 0.6, 1e-8, 0.01, averaging, decay, maximize), shapes, amsgrad)
plain = Hyper(0.1, 0.9, 0.6, 0.0, 0.01, False, "moment", False)
compare(plain, aligned)
compare(plain, shapes, handed_over=True)
compare(plain._replace(lr=torch.tensor(0.1)), shapes)
compare(plain, shapes, scale=torch.tensor(4.0))
compare(plain, shapes, found_inf=torch.tensor(1.0))
compare(plain, shapes, found_inf=torch.tensor(0.0))
compare(plain, shapes, odd=True)
compare(plain, shapes, odd=True, handed_over=True, amsgrad=True)
compare(plain, [(3, 4), (7,)], odd=True, handed_over=True)  # none that the kernels can read
compare(plain, shapes, odd=True, scale=torch.tensor(4.0), found_inf=torch.tensor(0.0))
compare(plain, shapes, odd=True, scale=torch.tensor(4.0), found_inf=torch.tensor(1.0))
print("equal")
"""

COMPILED = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from optim import novograd_triton as kernels

def compiled(name, tensors, **constants):
    kernel = getattr(kernels, name)
    signature = tensors | dict.fromkeys(constants, "constexpr")
    at = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
    source = ASTSource(kernel, signature, constexprs=at)
    return triton.compile(source, target=GPUTarget("cuda", value, 32)).asm["ptx"]

wide = 0
pairs = (tl.float32, tl.float32), (tl.bfloat16, tl.float32), (tl.float64, tl.float64)
for dtype, moment in pairs:
    flags = dict.fromkeys(
        ("HAS_NORMS", "HAS_FACTORS", "HAS_SCALE", "HAS_FOUND_INF", "GRAD_AVERAGING", "AMSGRAD",
         "DECAY_IN_UPDATE"), True) | {"HAS_NORMS": False}
    table = {"table": "*i64"}
    compiled("_partial_norms", table | {"owner": "*i32", "partial": "*fp64", "tensors": "i32"},
             DTYPE=dtype, VECTOR=4, BLOCK=4096)
    compiled("_second_moments", table | {"partial": "*fp64", "known": "*fp64",
             "gradient_factors": "*fp64", "scalars": "*fp64", "grad_scale": "*fp32",
             "found_inf": "*fp32", "factors": "*fp64", "tensors": "i32"},
             MOMENT=moment, LIMIT=3e38, BLOCK=4096, SUM_BLOCK=1024, **flags)
    ptx = compiled("_update", table | {"owner": "*i32", "factors": "*fp64", "scalars": "*fp64",
                   "grad_scale": "*fp32", "found_inf": "*fp32", "tensors": "i32"},
                   DTYPE=dtype, COMPUTE=moment, VECTOR=4, HAS_SCALE=True, HAS_FOUND_INF=True,
                   BLOCK=4096)
    wide += ".v4.b32" in ptx
assert wide >= 1, "no 16-byte accesses"
print("compiled")
"""


def run(program: str, value: object, **environment: str) -> str:
    """What the program prints for a value."""
    done = subprocess.run(
        [sys.executable, "-c", f"value = {value!r}\n{program}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@needs_triton
@pytest.mark.parametrize(
    "dtype", ["float32", "float16", pytest.param("float64", marks=pytest.mark.slow)]
)
def test_interpreted_kernels_equal_the_single_tensor_form(dtype):
    """Not in bf16: the interpreter truncates where a GPU rounds."""
    assert run(INTERPRETED, dtype, TRITON_INTERPRET="1") == "equal"


@needs_triton
@pytest.mark.parametrize("capability", [80, pytest.param(90, marks=pytest.mark.slow)])
def test_kernels_compile_for_nvidia_gpus(tmp_path, capability):
    assert run(COMPILED, capability, TRITON_CACHE_DIR=str(tmp_path)) == "compiled"
