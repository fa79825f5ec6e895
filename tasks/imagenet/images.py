"""What the model sees of an image file: a random part of it, or its middle; uint8 (H, W, 3)."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from random import Random
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tasks.imagenet.crops import SMALLEST_CROP, Object, reference_crop, torchvision_crop
from tasks.imagenet.jpeg import SHRINKS, Box, Declined, JpegPicture, is_available

PREPROCESSINGS = ("reference", "torchvision")
RESIZE_TO_CROP = 256 / 224  # evaluation: the shorter side before the central crop
MEANS = (123.68, 116.78, 103.94)  # red, green, blue, of 0 … 255
RANGE = 127.5
JPEG_START = b"\xff\xd8\xff"
KEPT, SMALL = 2048, 64 * 64  # decoded PNGs in memory, at most, of so many pixels
PNG_START, EIGHT_BIT_RGB = b"\x89PNG\r\n\x1a\n", b"\x08\x02"


class UnreadableImage(Exception):
    """A file that no decoder takes; the message is the decoder's."""


class Picture(Protocol):
    """An image of known size that is decoded when a part of it is asked for."""

    height: int
    width: int
    can_shrink: bool

    def part(self, box: Box, shrink: int) -> np.ndarray:
        """uint8 (height, width, 3); the box counts pixels of the image reduced by `shrink`."""


class PillowPicture:
    """Every format and colour that Pillow knows; EXIF's orientation is ignored, as by TF."""

    def __init__(self, data: bytes) -> None:
        try:
            self._image = Image.open(io.BytesIO(data))
        except _PILLOWS_ERRORS as error:
            raise UnreadableImage(str(error)) from error
        self.width, self.height = self._image.size
        self.can_shrink = self._image.format == "JPEG"

    def part(self, box: Box, shrink: int) -> np.ndarray:
        """To be asked once."""
        try:
            if shrink > 1:
                self._image.draft(None, (self.width // shrink, self.height // shrink))
            pixels = np.array(self._image.convert("RGB"))
        except _PILLOWS_ERRORS as error:
            raise UnreadableImage(str(error)) from error
        top, left, height, width = box
        return pixels[top : top + height, left : left + width]


_PILLOWS_ERRORS = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


class PngPicture:
    """A PNG in plain RGB, decoded without Python in between: small ones several times as fast."""

    can_shrink = False

    def __init__(self, data: bytes) -> None:
        if data[24:26] != EIGHT_BIT_RGB:
            raise Declined("not RGB in eight bits")
        self.width, self.height = (int.from_bytes(data[i : i + 4]) for i in (16, 20))
        self._data = data

    def part(self, box: Box, shrink: int) -> np.ndarray:
        """Never reduced: that is for JPEGs."""
        is_small = self.height * self.width <= SMALL
        planes = (_decode_small_png if is_small else _decode_png)(self._data)
        if planes.shape != (3, self.height, self.width):
            raise Declined("with an alpha channel")
        top, left, height, width = box
        pixels: np.ndarray = planes.permute(1, 2, 0).numpy()
        return pixels[top : top + height, left : left + width]


def _decode_png(data: bytes) -> Tensor:
    """uint8 (channels, height, width)."""
    try:
        return _png_decoder()(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    except RuntimeError as error:
        raise Declined(str(error)) from error


# By content, for the many epochs over few images of small scales; nobody writes to these tensors.
_decode_small_png = lru_cache(maxsize=KEPT)(_decode_png)


@cache
def _png_decoder() -> Callable[[Tensor], Tensor]:
    """Imported at the first PNG: torchvision takes seconds, and few runs have PNGs."""
    from torchvision.io import decode_png  # type: ignore[import-untyped]

    decoder: Callable[[Tensor], Tensor] = decode_png
    return decoder


class QuickPicture:
    """A picture of a quick decoder; a part that it declines is decoded by Pillow."""

    def __init__(self, data: bytes, quick: JpegPicture | PngPicture) -> None:
        self.height, self.width, self.can_shrink = quick.height, quick.width, quick.can_shrink
        self._data, self._quick = data, quick

    def part(self, box: Box, shrink: int) -> np.ndarray:
        """Pillow is the judge of files that are damaged."""
        try:
            return self._quick.part(box, shrink)
        except Declined:
            return PillowPicture(self._data).part(box, shrink)


@dataclass(frozen=True)
class Preprocessing:
    """Which code's way of cropping and resizing, and which share of an image a crop has at least.

    "reference" is the paper's (TensorFlow 1): crops as `reference_crop` draws them, of the image at
    its full size, mirrored before they are resized from corners. "torchvision" decodes large JPEGs
    at a reduced size, and resizes between the centres of pixels.
    """

    kind: str = "torchvision"
    smallest: float = SMALLEST_CROP


TORCHVISION = Preprocessing()


def training_image(
    path: str,
    size: int,
    random: Random,
    how: Preprocessing = TORCHVISION,
    objects: Sequence[Object] = (),
) -> np.ndarray:
    """A random part of a file's image as a square, mirrored or not."""
    return augment(open_picture(_read(path)), size, random, how, objects)


def evaluation_image(path: str, size: int, how: Preprocessing = TORCHVISION) -> np.ndarray:
    """The middle square of a file's image with its shorter side at 8/7 of the square's."""
    return central(open_picture(_read(path)), size, how)


def open_picture(data: bytes) -> Picture:
    """A picture with the quickest decoder that takes the file."""
    try:
        if data.startswith(JPEG_START) and is_available():
            return QuickPicture(data, JpegPicture(data))
        if data.startswith(PNG_START):
            return QuickPicture(data, PngPicture(data))
    except Declined:
        pass
    return PillowPicture(data)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # half the time of Path's
            return file.read()
    except OSError as error:
        raise UnreadableImage(error.strerror or str(error)) from error


def augment(
    picture: Picture,
    size: int,
    random: Random,
    how: Preprocessing = TORCHVISION,
    objects: Sequence[Object] = (),
) -> np.ndarray:
    """A random crop, resized; a mirror image half of the time."""
    if how.kind == "reference":
        box = reference_crop(picture.height, picture.width, random, how.smallest, objects)
        pixels = picture.part(box, 1)
        pixels = mirror(pixels) if random.random() < 0.5 else pixels
        return resize_from_corners(pixels, size, size)
    box = torchvision_crop(picture.height, picture.width, random, how.smallest)
    mirrored = random.random() < 0.5
    shrink = largest_shrink(box, size) if picture.can_shrink else 1
    if shrink > 1:
        box = shrunk(box, shrink)
    square = resize(picture.part(box, shrink), size, size)
    return mirror(square) if mirrored else square


def central(picture: Picture, size: int, how: Preprocessing = TORCHVISION) -> np.ndarray:
    """Bilinear to the shorter side, then the middle: the paper's evaluation."""
    height, width = picture.height, picture.width
    shorter, target = min(height, width), round(size * RESIZE_TO_CROP)
    whole = picture.part((0, 0, height, width), 1)
    if how.kind == "reference":
        ratio = np.float32(target) / np.float32(shorter)  # its rounding makes 255 of some 256
        sides = [int(np.float32(side) * ratio) for side in (height, width)]
        resized = resize_from_corners(whole, *sides)
        top, left = ((side - size) // 2 for side in sides)
    else:
        resized = resize(whole, target * height // shorter, target * width // shorter)
        top, left = (round((side - size) / 2) for side in resized.shape[:2])
    return resized[top : top + size, left : left + size]


def largest_shrink(box: Box, size: int) -> int:
    """How much a JPEG may be reduced while it is decoded: the part keeps at least `size` pixels."""
    shorter = min(box[2:])
    return next((s for s in SHRINKS if shorter >= s * size), 1)


def shrunk(box: Box, shrink: int) -> Box:
    """The box in pixels of the reduced image, to the nearest whole ones inside it."""
    top, left, height, width = box
    return round(top / shrink), round(left / shrink), height // shrink, width // shrink


def resize(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear between the centres of pixels, without smoothing beforehand."""
    return _bilinear(pixels, height, width, align_corners=False)


def resize_from_corners(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear as TensorFlow 1: pixel y lies at y · (old height / new height), not half a pixel on.

    That is torch's way with aligned corners for a row and a column more, both old and new, of which
    the old are copies of the last ones and the new are left out.
    """
    old_height, old_width = pixels.shape[:2]
    if (old_height, old_width) == (height, width):
        return pixels
    larger = np.empty((old_height + 1, old_width + 1, 3), dtype=np.uint8)
    larger[:-1, :-1] = pixels
    larger[-1, :-1] = pixels[-1]
    larger[:, -1] = larger[:, -2]
    return _bilinear(larger, height + 1, width + 1, align_corners=True)[:height, :width]


def _bilinear(pixels: np.ndarray, height: int, width: int, *, align_corners: bool) -> np.ndarray:
    if pixels.shape[:2] == (height, width):
        return pixels
    # Into memory in which the colours of a pixel stay together: twice as fast, and copied at once.
    resized = torch.empty(height, width, 3, dtype=torch.uint8)
    scales = None, None
    torch.ops.aten.upsample_bilinear2d.out(
        _planes(torch.from_numpy(pixels)),
        [height, width],
        align_corners,
        *scales,
        out=_planes(resized),
    )
    return resized.numpy()


def mirror(pixels: np.ndarray) -> np.ndarray:
    """From left to right; much faster than a copy by numpy."""
    return _planes(torch.from_numpy(pixels)).flip(3)[0].permute(1, 2, 0).numpy()


def _planes(pixels: Tensor) -> Tensor:
    """(H, W, 3) seen as (1, 3, H, W)."""
    return pixels.permute(2, 0, 1)[None]
