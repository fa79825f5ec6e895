"""NovoGrad's fused step on CUDA: three Triton launches for all tensors of a group and dtype.

1. `_partial_norms`: sums of squares of blocks, in float64;
2. `_second_moments`: per tensor, adds its blocks' sums up in a fixed order, moves v and writes
   the factors of the update;
3. `_update`: m <- beta1 m + a g + d w and w <- s w - lr m, block by block.

Addresses and sizes come from a table on the device, made anew only when a tensor has moved. No
atomics, so a step is reproducible bit for bit; nothing is read back to the host, so it can be
captured in a CUDA graph, after a step that has made the table. Scalars travel as a float64 tensor,
because a Python float becomes fp32 as a kernel argument. The same code runs on CPU tensors under
Triton's interpreter (TRITON_INTERPRET=1), which is how it is tested where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .memory import addresses, is_dense, is_readable
from .norms import squared_norms
from .novograd_eager import Hyper, Tensors, multi_tensor

_BLOCK = 4096
_SUM_BLOCK = 1024
_TRITON_DTYPES = {
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


@triton.jit
def _partial_norms(
    table,
    owner,
    partial,
    tensors,
    DTYPE: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    t = tl.load(owner + block)
    numel = tl.load(table + t)
    first = tl.load(table + tensors + t)
    g = tl.load(table + 3 * tensors + t).to(tl.pointer_type(DTYPE))
    if VECTOR > 1:  # lets the compiler use 16-byte loads
        numel = tl.multiple_of(numel, VECTOR)
        g = tl.multiple_of(g, 16)
    at = (block - first) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(g + at, mask=at < numel, other=0.0).to(tl.float64)
    tl.store(partial + block, tl.sum(x * x, axis=0))


@triton.jit
def _second_moments(
    table,
    partial,
    known,
    gradient_factors,
    scalars,
    grad_scale,
    found_inf,
    factors,
    tensors,
    MOMENT: tl.constexpr,
    LIMIT: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    HAS_FACTORS: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_FOUND_INF: tl.constexpr,
    GRAD_AVERAGING: tl.constexpr,
    AMSGRAD: tl.constexpr,
    DECAY_IN_UPDATE: tl.constexpr,
    BLOCK: tl.constexpr,
    SUM_BLOCK: tl.constexpr,
):
    t = tl.program_id(0)
    lr = tl.load(scalars)
    beta1 = tl.load(scalars + 1)
    beta2 = tl.load(scalars + 2)
    eps = tl.load(scalars + 3)
    weight_decay = tl.load(scalars + 4)
    factor = tl.load(scalars + 5)
    one = factor * 0.0 + 1.0
    if HAS_FACTORS:
        factor = factor * tl.load(gradient_factors + t)
    if HAS_SCALE:
        factor = factor / tl.load(grad_scale).to(tl.float64)

    if HAS_NORMS:
        squared_norm = tl.load(known + t)
    else:
        numel = tl.load(table + t)
        first = tl.load(table + tensors + t)
        blocks = tl.cdiv(numel, BLOCK)
        at = tl.arange(0, SUM_BLOCK)
        sums = tl.zeros((SUM_BLOCK,), dtype=tl.float64)
        done = blocks * 0
        while done < blocks:
            sums += tl.load(partial + first + done + at, mask=done + at < blocks, other=0.0)
            done += SUM_BLOCK
        squared_norm = tl.sum(sums, axis=0)
    squared_norm = squared_norm * factor * factor

    v = tl.load(table + 5 * tensors + t).to(tl.pointer_type(MOMENT))
    old = tl.load(v).to(tl.float64)
    new = tl.where(old > 0.0, beta2 * old + (1.0 - beta2) * squared_norm, squared_norm)
    unborn = (old < 0.0) & (squared_norm == 0.0)
    kept = tl.where(unborn, old, new)
    kept = tl.where(kept > LIMIT, one * LIMIT, kept)
    alive = True
    if HAS_FOUND_INF:
        alive = tl.load(found_inf) == 0.0
    tl.store(v, kept.to(MOMENT), mask=alive)
    if AMSGRAD:
        v_max = tl.load(table + 6 * tensors + t).to(tl.pointer_type(MOMENT))
        highest = tl.load(v_max).to(tl.float64)
        new = tl.where(highest > new, highest, new)
        tl.store(v_max, tl.where(new > LIMIT, one * LIMIT, new).to(MOMENT), mask=alive)

    denominator = tl.sqrt(new) + eps
    inverse = tl.where(denominator == 0.0, one, one / denominator)
    inverse = tl.where(inverse > LIMIT, one * LIMIT, inverse)
    share = one
    if GRAD_AVERAGING:
        share = tl.where((old < 0.0) & (squared_norm > 0.0), one, 1.0 - beta1)
    decay = share * weight_decay
    shrink = one
    if DECAY_IN_UPDATE:
        decay = one * 0.0
        shrink = 1.0 - lr * weight_decay
    tl.store(factors + t, share * inverse * factor)
    tl.store(factors + tensors + t, decay)
    tl.store(factors + 2 * tensors + t, shrink)
    tl.store(factors + 3 * tensors + t, squared_norm)


@triton.jit
def _update(
    table,
    owner,
    factors,
    scalars,
    grad_scale,
    found_inf,
    tensors,
    DTYPE: tl.constexpr,
    COMPUTE: tl.constexpr,
    VECTOR: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_FOUND_INF: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    t = tl.load(owner + block)
    numel = tl.load(table + t)
    first = tl.load(table + tensors + t)
    w_at = tl.load(table + 2 * tensors + t).to(tl.pointer_type(DTYPE))
    g_at = tl.load(table + 3 * tensors + t).to(tl.pointer_type(DTYPE))
    m_at = tl.load(table + 4 * tensors + t).to(tl.pointer_type(DTYPE))
    if HAS_FOUND_INF:  # then no element is touched
        numel = tl.where(tl.load(found_inf) == 0.0, numel, numel * 0)
    if VECTOR > 1:
        numel = tl.multiple_of(numel, VECTOR)
        w_at = tl.multiple_of(w_at, 16)
        g_at = tl.multiple_of(g_at, 16)
        m_at = tl.multiple_of(m_at, 16)
    at = (block - first) * BLOCK + tl.arange(0, BLOCK)
    w_at += at
    g_at += at
    m_at += at
    mask = at < numel
    lr = tl.load(scalars).to(COMPUTE)
    beta1 = tl.load(scalars + 1).to(COMPUTE)
    a = tl.load(factors + t).to(COMPUTE)
    d = tl.load(factors + tensors + t).to(COMPUTE)
    shrink = tl.load(factors + 2 * tensors + t).to(COMPUTE)
    w = tl.load(w_at, mask=mask, other=0.0).to(COMPUTE)
    g = tl.load(g_at, mask=mask, other=0.0).to(COMPUTE)
    m = tl.load(m_at, mask=mask, other=0.0).to(COMPUTE)
    m = beta1 * m + (a * g + d * w)
    tl.store(m_at, m.to(DTYPE), mask=mask)
    tl.store(w_at, (shrink * w - lr * m).to(DTYPE), mask=mask)
    if HAS_SCALE:  # the gradient is left unscaled, as by torch's fused optimizers
        unscaled = g / tl.load(grad_scale).to(COMPUTE)
        tl.store(g_at, unscaled.to(DTYPE), mask=mask)


class _Table:
    """Sizes and addresses of one dtype's tensors on their device, and the kernels' scratch.

    Rows of the table, one column per tensor: elements, number of its first block, and the
    addresses (`key`) of parameter, gradient, moment, v and, with AMSGrad, the largest v.
    """

    def __init__(
        self, key: tuple[int, ...], numels: list[int], itemsize: int, device: torch.device
    ) -> None:
        blocks = [-(-n // _BLOCK) for n in numels]
        first = [0, *accumulate(blocks)][:-1]
        owner = [t for t, count in enumerate(blocks) for _ in range(count)]
        self.key, self.numels = key, numels
        vector = 16 // itemsize  # elements of one 16-byte access, where all tensors allow that
        aligned = all(address % 16 == 0 for address in key[: 3 * len(numels)])
        self.vector = vector if aligned and all(n % vector == 0 for n in numels) else 1
        self.host = [_on_host([*numels, *first, *key]), _on_host(owner, torch.int32)]
        self.table, self.owner = (t.to(device, non_blocking=True) for t in self.host)
        self.partial = torch.empty(max(len(owner), 1), dtype=torch.float64, device=device)
        self.factors = torch.empty(4 * len(numels), dtype=torch.float64, device=device)
        self.scalars_on_host: list[float] = []
        self.scalars = torch.empty(6, dtype=torch.float64, device=device)

    def set_scalars(self, hyper: Hyper) -> None:
        """Copies what has changed; a learning rate on the device stays there."""
        lr = 0.0 if isinstance(hyper.lr, Tensor) else hyper.lr
        sign = -1.0 if hyper.maximize else 1.0
        values = [lr, hyper.beta1, hyper.beta2, hyper.eps, hyper.weight_decay, sign]
        if values != self.scalars_on_host:
            _refuse_to_capture()
            self.scalars_on_host = values
            self.scalars.copy_(_on_host(values, torch.float64), non_blocking=True)
        if isinstance(hyper.lr, Tensor):
            self.scalars[:1].copy_(hyper.lr.reshape(1))


Tables = dict[object, Any]  # one parameter group's; captured graphs go on using them


def _refuse_to_capture() -> None:
    """What a graph would replay from must not be made while it is captured."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "NovoGrad(fused=True): make a step before the capture, with the same gradients' "
            "memory (zero_grad(set_to_none=False)) and a tensor lr, and capture the next one"
        )


def _on_host(values: Sequence[float], dtype: torch.dtype = torch.int64) -> Tensor:
    tensor = torch.tensor(values, dtype=dtype)
    return tensor.pin_memory() if torch.cuda.is_available() else tensor


def _table_of(part: Tensors, tables: Tables) -> _Table:
    found = addresses([t for ts in part[:5] for t in ts])
    assert found is not None, "_fits has seen to it"
    key = tuple(found)
    numels = [p.numel() for p in part.params]
    first = part.params[0]
    place = (first.device, first.dtype, part.grads[0].dtype)
    table: _Table | None = tables.get(place)
    if table is None or table.key != key or table.numels != numels:
        _refuse_to_capture()
        table = tables[place] = _Table(key, numels, first.element_size(), first.device)
    return table


def step(
    tensors: Tensors,
    hyper: Hyper,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    tables: Tables | None = None,
) -> Tensor | None:
    """One step of CUDA parameters; `grad_scale` and `found_inf` as GradScaler sets them.

    With a `grad_scale` the gradients are unscaled as well, as torch's fused optimizers leave them.
    Returns the squared norms of the gradients, after their factors, where one launch had them all.
    """
    seen: list[Tensor] = []
    for part in tensors.by_device_and_dtype():
        lists = zip(part.params, part.grads, part.exp_avgs, part.exp_avg_sqs, strict=True)
        fits = [_fits(*ts) for ts in lists]
        odd = [i for i, fit in enumerate(fits) if not fit]
        if odd:
            _step_by_torch(part.select(odd), hyper, grad_scale, found_inf)
            if not any(fits):
                continue
            part = part.select([i for i, fit in enumerate(fits) if fit])
        device = part.params[0].device
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            own = {} if tables is None else tables
            seen.append(_launch(part, hyper, grad_scale, found_inf, own))
    return seen[0] if len(seen) == 1 and len(seen[0]) == len(tensors.params) else None


def _fits(param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor) -> bool:
    """Whether the kernels can read all of them, and find element i at the same place in each."""
    return (
        param.dtype == grad.dtype == exp_avg.dtype
        and not grad.is_neg()
        and is_readable(param, grad, exp_avg, exp_avg_sq)
        and is_dense(param)
        and all(param.stride() == t.stride() or _both_contiguous(param, t) for t in (grad, exp_avg))
    )


def _step_by_torch(
    part: Tensors, hyper: Hyper, grad_scale: Tensor | None, found_inf: Tensor | None
) -> None:
    """The step of tensors that the kernels can't read as they are; no host synchronisation."""
    norms = squared_norms(part.grads) if part.squared_norms is None else part.squared_norms
    factors = part.gradient_factors
    if grad_scale is not None:
        inverse = grad_scale.to(norms).reciprocal().expand(norms.shape)
        factors = inverse if factors is None else factors * inverse
    unscaled = [g for g in part.grads if grad_scale is not None and not g._is_zerotensor()]
    written = [*(t for ts in (part.params, *part[2:5]) for t in ts), *unscaled]
    kept = [] if found_inf is None else [t.clone() for t in written]
    multi_tensor(part._replace(squared_norms=norms, gradient_factors=factors), hyper)
    if grad_scale is not None:
        for g in unscaled:
            g.div_(grad_scale)
    if found_inf is not None:  # then nothing is to change
        for tensor, before in zip(written, kept, strict=True):
            tensor.copy_(torch.where(found_inf == 0, tensor, before))


def _both_contiguous(a: Tensor, b: Tensor) -> bool:
    return a.is_contiguous() and b.is_contiguous()


def _launch(
    part: Tensors,
    hyper: Hyper,
    grad_scale: Tensor | None,
    found_inf: Tensor | None,
    tables: Tables,
) -> Tensor:
    table, count = _table_of(part, tables), len(part.params)
    table.set_scalars(hyper)
    blocks = table.owner.numel()  # none on a rank whose shards are all empty: v still moves
    storage = _TRITON_DTYPES[part.params[0].dtype]
    moment_dtype = part.exp_avg_sqs[0].dtype
    moment = _TRITON_DTYPES[moment_dtype]
    unused = table.scalars  # stands for tensors that a kernel's flags make it ignore
    if part.squared_norms is None and blocks:
        _partial_norms[(blocks,)](
            table.table,
            table.owner,
            table.partial,
            count,
            DTYPE=storage,
            VECTOR=table.vector,
            BLOCK=_BLOCK,
        )
    _second_moments[(count,)](
        table.table,
        table.partial,
        unused if part.squared_norms is None else part.squared_norms,
        unused if part.gradient_factors is None else part.gradient_factors,
        table.scalars,
        unused if grad_scale is None else grad_scale,
        unused if found_inf is None else found_inf,
        table.factors,
        count,
        MOMENT=moment,
        LIMIT=torch.finfo(moment_dtype).max,
        HAS_NORMS=part.squared_norms is not None,
        HAS_FACTORS=part.gradient_factors is not None,
        HAS_SCALE=grad_scale is not None,
        HAS_FOUND_INF=found_inf is not None,
        GRAD_AVERAGING=hyper.grad_averaging,
        AMSGRAD=bool(part.max_exp_avg_sqs),
        DECAY_IN_UPDATE=hyper.decay == "update",
        BLOCK=_BLOCK,
        SUM_BLOCK=_SUM_BLOCK,
    )
    squared_norms = table.factors[3 * count :]
    if blocks == 0:
        return squared_norms
    _update[(blocks,)](
        table.table,
        table.owner,
        table.factors,
        table.scalars,
        unused if grad_scale is None else grad_scale,
        unused if found_inf is None else found_inf,
        count,
        DTYPE=storage,
        COMPUTE=moment,
        VECTOR=table.vector,
        HAS_SCALE=grad_scale is not None,
        HAS_FOUND_INF=found_inf is not None,
        BLOCK=_BLOCK,
    )
    return squared_norms
