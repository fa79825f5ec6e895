"""Tensors that lie at known addresses of the CPU's memory, and whether they still do.

Asking each tensor from Python takes longer than the step of a small one. torch describes its
tensors to other libraries through DLPack's functions for C, in a fifth of that time.
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from . import native
from .memory import addresses


class Layouts:
    """Sizes and strides of tensors, to recognise others that lie alike in memory.

    A stride does not matter where its dimension has one element.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.values = array("q")  # of each: the number of dimensions, their sizes, their strides
        for tensor in tensors:
            pairs = zip(tensor.shape, tensor.stride(), strict=True)
            strides = (stride if size > 1 else 0 for size, stride in pairs)
            self.values.extend((tensor.dim(), *tensor.shape, *strides))


class Located:
    """Tensors of plain types, and where they lie."""

    def __init__(
        self, tensors: Sequence[Tensor], dtype: torch.dtype, layouts: Layouts | None = None
    ) -> None:
        self.tensors = list(tensors)
        self._dtype, self._layouts = dtype, layouts
        self.addresses = locate(tensors, dtype, layouts)  # None: not as expected
        self._descriptions = None if self.addresses is None else Descriptions(tensors)

    def is_current(self) -> bool:
        """Whether all are as expected, and where they were."""
        now = locate(self.tensors, self._dtype, self._layouts, self._descriptions)
        return now is not None and now == self.addresses


class Descriptions:
    """Addresses of the objects that describe some tensors, in Python and in torch.

    The Python objects stay where they are for as long as they live, torch's may be replaced.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.objects = array("Q", map(id, tensors))
        self.parts = array("Q")  # of each: torch's tensor and its storage
        for tensor in tensors:
            self.parts.extend((tensor._cdata, tensor.untyped_storage()._cdata))


def locate(
    tensors: Sequence[Tensor],
    dtype: torch.dtype,
    layouts: Layouts | None,
    descriptions: Descriptions | None = None,
) -> array[int] | None:
    """Where tensors of plain types lie; None if one has another dtype or layout, or no memory.

    Without layouts each must have one element. Descriptions save time: their objects must be those
    of the tensors, their parts are only fetched ahead and may be out of date.
    """
    call, describe = native.locator(), _describe()
    if call is None or describe is None:
        return locate_one_by_one(tensors, dtype, layouts)
    if torch._C._len_torch_dispatch_stack() > 0:  # a mode has to see the operations
        return None
    objects = array("Q", map(id, tensors)) if descriptions is None else descriptions.objects
    found = array("Q", bytes(objects.itemsize * len(objects)))
    try:
        code = call(
            describe,
            len(objects),
            objects.buffer_info()[0],
            native.DTYPES[dtype],
            None if layouts is None else layouts.values.buffer_info()[0],
            None if descriptions is None else descriptions.parts.buffer_info()[0],
            found.buffer_info()[0],
        )
    except RuntimeError:  # no storage: sparse and opaque layouts, functionalised tensors
        return None
    return found if code == 0 else None


def locate_one_by_one(
    tensors: Sequence[Tensor], dtype: torch.dtype, layouts: Layouts | None
) -> array[int] | None:
    """The same with torch before 2.10."""
    if not all(t.is_cpu and t.dtype == dtype and t.layout == torch.strided for t in tensors):
        return None
    fit = (
        all(t.numel() == 1 for t in tensors)
        if layouts is None
        else Layouts(tensors).values == layouts.values
    )
    return addresses(tensors) if fit else None


@functools.cache
def _describe() -> int | None:
    """Where torch's `DLPackDLTensorFromPyObjectNoSync` lies; None before torch 2.10."""
    capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    api = _ExchangeAPI.from_address(pointer_of(capsule, b"dlpack_exchange_api"))
    return api.describe if api.major == 1 else None


class _ExchangeAPI(ctypes.Structure):
    """`DLPackExchangeAPI` of dlpack.h."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("describe", ctypes.c_void_p),
    ]
