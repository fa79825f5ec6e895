"""Which tensors a kernel may read through their address, and in which order their elements lie.

The C++ and the Triton kernels take addresses from here and from nowhere else. A tensor may have no
memory of its own: zero tensors, functionalised and `vmap`ped tensors (all of them of type Tensor),
fake and meta tensors, wrapper subclasses. Those are left to torch's operations.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

PLAIN_TYPES = {Tensor, torch.nn.Parameter}


def addresses(tensors: Sequence[Tensor]) -> array[int] | None:
    """Where each tensor's first element lies; None if one of them can't be read so."""
    if torch._C._len_torch_dispatch_stack() > 0:  # a mode has to see the operations
        return None
    kinds = set(map(type, tensors))
    if not kinds <= PLAIN_TYPES and any(_has_own_operations(kind) for kind in kinds):
        return None
    try:
        found = array("Q", map(Tensor.data_ptr, tensors))
    except RuntimeError:  # no storage: sparse and opaque layouts, functionalised tensors
        return None
    if 0 in found and any(p == 0 and t.numel() > 0 for p, t in zip(found, tensors, strict=True)):
        return None
    return found


def is_readable(*tensors: Tensor) -> bool:
    """Whether a kernel may read these tensors through their addresses."""
    return addresses(tensors) is not None


def _has_own_operations(kind: type[Tensor]) -> bool:
    """Whether a subclass defines what torch's operations do: a wrapper, a fake."""
    return kind.__torch_dispatch__ is not Tensor.__torch_dispatch__


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one block of memory, in any order of the dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def flat(tensor: Tensor) -> Tensor:
    """All elements in one contiguous dimension: a view in memory order, or a copy if not dense."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    if is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.contiguous().view(-1)  # reshape(-1) of a strided tensor may be strided itself
