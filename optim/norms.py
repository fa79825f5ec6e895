"""Squared L2 norms of whole tensors, in float64.

Every layer-wise method here divides by a norm, so the norm is where bits are lost: fp16 squares
overflow at 256, fp32 squares at 2e19, and torch's own CPU norms add up fp32 naively (off by 1e-3
at 17M elements). Squares are summed in float64 throughout, without a float64 copy of the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import memory, native

_BLOCK = 1 << 16  # elements that are widened to float64 at a time
_RUN = 4096


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor, of which each rank holds a part (FSDP2, tensor parallelism)."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, sharing its memory; any other tensor as it is."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def gradient_of(param: Tensor) -> Tensor:
    """The gradient as its parameter is placed; it must be there.

    A DTensor's gradient may lie otherwise: partial sums under sequence parallelism, for example.
    """
    grad = param.grad
    assert grad is not None
    if grad.layout is not torch.strided:
        raise RuntimeError(
            f"sparse gradients are not supported (parameter of shape {tuple(param.shape)}): "
            "make the embedding with sparse=False"
        )
    if is_sharded(param) and grad.placements != param.placements:  # type: ignore[attr-defined]
        moved: Tensor = grad.redistribute(placements=param.placements)  # type: ignore[attr-defined]
        return moved
    return grad


def accumulation_dtype(device: torch.device) -> torch.dtype:
    """float64 wherever the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def squared_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Squared norm of each tensor, as one float64 vector; no host synchronisation.

    A DTensor's norm is that of the whole tensor, over all its ranks. The vector is on the first
    tensor's device.
    """
    devices = list(dict.fromkeys(t.device for t in tensors))
    if not devices:
        return torch.zeros(0, dtype=torch.float64)
    if len(devices) == 1 and not any(is_sharded(t) for t in tensors):
        return _plain_squared_norms(tensors)
    kinds: dict[object, list[int]] = {}
    for i, tensor in enumerate(tensors):
        kind: object = tensor.device
        if is_sharded(tensor):
            kind = (tensor.device_mesh, tensor.placements)  # type: ignore[attr-defined]
        kinds.setdefault(kind, []).append(i)
    parts: dict[int, Tensor] = {}
    for where in kinds.values():
        alike = [tensors[i] for i in where]
        norms = (_sharded_squared_norms if is_sharded(alike[0]) else _plain_squared_norms)(alike)
        parts |= zip(where, norms.to(devices[0]).unbind(), strict=True)
    return torch.stack([parts[i] for i in range(len(tensors))])


def _sharded_squared_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Of DTensors with the same mesh and placements: one collective for all of them."""
    dtype = accumulation_dtype(tensors[0].device)
    # vector_norm gives partial norms and knows how these combine; stacked they stay partial.
    norms = torch.stack([torch.linalg.vector_norm(t, dtype=dtype) for t in tensors])
    whole: Tensor = norms.full_tensor()  # type: ignore[attr-defined]
    return whole.square()


def _plain_squared_norms(tensors: Sequence[Tensor]) -> Tensor:
    """Of tensors on one device."""
    device = tensors[0].device
    real = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
    if torch.compiler.is_compiling() or device.type not in ("cpu", "cuda"):
        return torch.stack([_norm_by_torch(t) for t in real]).square()
    if device.type == "cuda":  # widens in registers, a few launches for all tensors
        return torch.stack(torch._foreach_norm(real, 2, dtype=torch.float64)).square()
    dense = [t if t.is_contiguous() else memory.flat(t) for t in real]
    result = native.squared_norms(dense)
    if result is None:
        return _squared_norms_without_kernels([memory.flat(t) for t in dense])
    return result


def _norm_by_torch(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=accumulation_dtype(tensor.device))
    return norm


def _squared_norms_without_kernels(flat: Sequence[Tensor]) -> Tensor:
    """Small tensors all at once, which widens each of them; large ones in blocks."""
    readable = [memory.is_readable(t) for t in flat]
    small = [i for i, t in enumerate(flat) if readable[i] and t.numel() <= _BLOCK]
    parts: dict[int, Tensor] = {}
    if small:
        norms = torch._foreach_norm([flat[i] for i in small], 2, dtype=torch.float64)
        parts |= zip(small, norms, strict=True)
    for i, t in enumerate(flat):
        if i not in parts:
            parts[i] = _blocked_norm(t) if readable[i] else _norm_by_torch(t)
    return torch.stack([parts[i] for i in range(len(flat))]).square()


def _blocked_norm(flat: Tensor) -> Tensor:
    """fp32 in runs of 4,096, good to 1e-8 in all; float64 where that would overflow or vanish."""
    if flat.dtype == torch.float32:
        whole = flat.numel() // _RUN * _RUN
        runs = torch.linalg.vector_norm(flat[:whole].view(-1, _RUN), dim=1)
        rest = torch.linalg.vector_norm(flat[whole:]).reshape(1)
        norms = torch.cat([runs, rest]).double()
        if norms[:-1].min() > 1e-15 and norms.max() < 1e15:
            return norms.square().sum().sqrt()
    blocks = [torch.linalg.vector_norm(b, dtype=torch.float64) for b in torch.split(flat, _BLOCK)]
    return torch.stack(blocks).square().sum().sqrt()
