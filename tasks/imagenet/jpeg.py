"""JPEG files decoded in part: only the crop's blocks, and at a reduced size where that is enough.

libjpeg-turbo through its TurboJPEG 3 interface. The pixels are those of a whole decoding, to the
bit. Where the library is missing, or for files that it does not turn into RGB (CMYK), the caller
uses Pillow.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import threading
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from typing import Any

import numpy as np

Box = tuple[int, int, int, int]  # top, left, height, width
SHRINKS = (8, 4, 2, 1)  # sizes that a block's transform can be reduced by

# turbojpeg.h
_DECOMPRESS, _PIXELS_RGB = 1, 0
_SUBSAMPLING, _WIDTH, _HEIGHT, _PRECISION, _COLORS = 4, 5, 6, 7, 8
_RGB, _YCBCR, _GREY = 0, 1, 2
_BLOCK_WIDTH = {0: 8, 1: 16, 2: 16, 3: 8, 4: 8, 5: 32, 6: 8}  # of an MCU, by subsampling
_MARGIN = 2  # pixels: one of a colour that is stored at half the size


class _Region(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("left", "top", "width", "height")]


class _Factor(ctypes.Structure):
    _fields_ = [("numerator", ctypes.c_int), ("denominator", ctypes.c_int)]


class Declined(Exception):
    """A quick decoder does not take this file; Pillow may."""


class JpegPicture:
    """An encoded JPEG whose size is known."""

    can_shrink = True

    def __init__(self, data: bytes) -> None:
        self._data = data
        library, handle = self._read_header()
        self.height: int = library.tj3Get(handle, _HEIGHT)
        self.width: int = library.tj3Get(handle, _WIDTH)
        self._block = _BLOCK_WIDTH.get(library.tj3Get(handle, _SUBSAMPLING), 0)
        colours = library.tj3Get(handle, _COLORS)
        if colours not in (_RGB, _YCBCR, _GREY) or library.tj3Get(handle, _PRECISION) != 8:
            raise Declined("not RGB, YCbCr or grey in eight bits")
        if not self._block:
            raise Declined("an unknown subsampling of colours")

    def _read_header(self) -> tuple[Any, int]:
        """The library and this thread's decompressor, which has read this picture's header last."""
        library, handle = _own_handle()
        if getattr(_of_thread, "header_of", None) is not self._data:
            _of_thread.header_of = None
            if library.tj3DecompressHeader(handle, self._data, len(self._data)) != 0:
                raise Declined(library.tj3GetErrorStr(handle).decode())
            _of_thread.header_of = self._data
        return library, handle

    def part(self, box: Box, shrink: int) -> np.ndarray:
        """uint8 (height, width, 3): a part of the image that is reduced by `shrink`.

        The box counts pixels of the reduced image. A little more around it is decoded, because the
        colours of neighbours take part in smoothing; to the left from the beginning of a block on.
        """
        top, left, height, width = box
        block = max(1, self._block // shrink)
        all_height, all_width = -(-self.height // shrink), -(-self.width // shrink)
        x0 = max(0, (left - _MARGIN) // block * block)
        y0 = max(0, top - _MARGIN)
        x1 = min(all_width, left + width + _MARGIN)
        y1 = min(all_height, top + height + _MARGIN)
        pixels = np.empty((y1 - y0, x1 - x0, 3), dtype=np.uint8)
        library, handle = self._read_header()
        data = self._data
        region = _Region(x0, y0, x1 - x0, y1 - y0)
        if (
            library.tj3SetScalingFactor(handle, _Factor(1, shrink))
            or library.tj3SetCroppingRegion(handle, region)
            or library.tj3Decompress8(handle, data, len(data), pixels.ctypes.data, 0, _PIXELS_RGB)
        ):
            _of_thread.header_of = None
            raise Declined(library.tj3GetErrorStr(handle).decode())
        return pixels[top - y0 : top - y0 + height, left - x0 : left - x0 + width]


def is_available() -> bool:
    """Whether libjpeg-turbo 3 or later is there."""
    return _library() is not None


_of_thread = threading.local()


def _own_handle() -> tuple[Any, int]:
    """The library and this thread's decompressor, kept for its life."""
    library = _library()
    if library is None:
        raise Declined("no libjpeg-turbo")
    if not hasattr(_of_thread, "handle"):
        _of_thread.handle = library.tj3Init(_DECOMPRESS)
    return library, _of_thread.handle


@cache
def _library() -> Any:
    """The system's library if it is new enough, otherwise the one of the `turbojpeg` wheel."""
    for name in _candidates():
        try:
            library = ctypes.CDLL(name)
            _declare(library)
        except (OSError, AttributeError):
            continue
        return library
    return None


def _candidates() -> Iterator[str]:
    found = ctypes.util.find_library("turbojpeg")
    if found:
        yield found
    try:
        files = metadata.files("turbojpeg") or []
    except metadata.PackageNotFoundError:
        return
    yield from (str(f.locate()) for f in files if f.name.startswith("libturbojpeg"))


def _declare(library: Any) -> None:
    """AttributeError if the library is older than TurboJPEG 3."""
    pointer, integer, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    data = [pointer, ctypes.c_char_p, size]
    library.tj3Init.argtypes, library.tj3Init.restype = [integer], pointer
    library.tj3GetErrorStr.argtypes, library.tj3GetErrorStr.restype = [pointer], ctypes.c_char_p
    library.tj3DecompressHeader.argtypes = data
    library.tj3Get.argtypes = [pointer, integer]
    library.tj3SetScalingFactor.argtypes = [pointer, _Factor]
    library.tj3SetCroppingRegion.argtypes = [pointer, _Region]
    library.tj3Decompress8.argtypes = [*data, pointer, integer, integer]
