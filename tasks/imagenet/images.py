"""What the model sees of an image file: a random part of it, or its middle; uint8 (H, W, 3)."""

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from tasks.imagenet.jpeg import SHRINKS, Box, JpegError, JpegPicture, is_available

CROP_AREA = (0.05, 1.0)  # of the image's area
CROP_RATIO = (3 / 4, 4 / 3)  # width to height
CROP_ATTEMPTS = 10
RESIZE_TO_CROP = 256 / 224  # evaluation: the shorter side before the central crop
JPEG_START = b"\xff\xd8\xff"


class UnreadableImage(Exception):
    """A file that no decoder takes; the message is the decoder's."""


class Picture(Protocol):
    """An image of known size that is decoded when a part of it is asked for."""

    height: int
    width: int

    def part(self, box: Box, shrink: int) -> np.ndarray:
        """uint8 (height, width, 3); the box counts pixels of the image reduced by `shrink`."""


class PillowPicture:
    """Every format and colour that Pillow knows; EXIF's orientation is ignored, as by TF."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        try:
            with Image.open(io.BytesIO(data)) as image:
                self.width, self.height = image.size
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise UnreadableImage(str(error)) from error

    def part(self, box: Box, shrink: int) -> np.ndarray:
        try:
            with warnings.catch_warnings(), Image.open(io.BytesIO(self._data)) as image:
                warnings.simplefilter("ignore")  # of odd EXIF blocks
                if shrink > 1:
                    image.draft(None, (self.width // shrink, self.height // shrink))
                pixels = np.array(image.convert("RGB"))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise UnreadableImage(str(error)) from error
        top, left, height, width = box
        return pixels[top : top + height, left : left + width]


def training_image(path: Path, size: int, generator: torch.Generator) -> Tensor:
    """A random part of a file's image as a square, mirrored or not."""
    data = _read(path)
    if data.startswith(JPEG_START) and is_available():
        state = generator.get_state()
        try:
            return augment(JpegPicture(data), size, generator)
        except JpegError:
            generator.set_state(state)  # Pillow is the judge, and sees the same part
    return augment(PillowPicture(data), size, generator)


def evaluation_image(path: Path, size: int) -> Tensor:
    """The middle square of a file's image with its shorter side at 8/7 of the square's."""
    data = _read(path)
    if data.startswith(JPEG_START) and is_available():
        try:
            return central(JpegPicture(data), size)
        except JpegError:
            pass
    return central(PillowPicture(data), size)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UnreadableImage(error.strerror or str(error)) from error


def augment(picture: Picture, size: int, generator: torch.Generator) -> Tensor:
    """RandomResizedCrop with the paper's areas, then a mirror image half of the time."""
    box = crop_box(picture.height, picture.width, generator)
    mirrored = torch.rand(1, generator=generator).item() < 0.5
    shrink = largest_shrink(box, size)
    if shrink > 1:
        box = shrunk(box, shrink)
    square = resize(picture.part(box, shrink), size, size)
    return square.flip(1) if mirrored else square


def central(picture: Picture, size: int) -> Tensor:
    """Bilinear to the shorter side, then the middle: the paper's evaluation."""
    height, width = picture.height, picture.width
    shorter, target = min(height, width), round(size * RESIZE_TO_CROP)
    whole = picture.part((0, 0, height, width), 1)
    resized = resize(whole, target * height // shorter, target * width // shorter)
    top, left = (round((side - size) / 2) for side in resized.shape[:2])
    return resized[top : top + size, left : left + size]


def crop_box(height: int, width: int, generator: torch.Generator) -> Box:
    """Top, left, height and width, drawn as torchvision's RandomResizedCrop draws them.

    The paper's code samples with object boxes that the folders do not have; area and ratio are its.
    """

    def uniform(low: float, high: float) -> Tensor:
        return torch.empty(1).uniform_(low, high, generator=generator)

    def below(end: int) -> int:
        return int(torch.randint(end, (1,), generator=generator).item())

    low, high = CROP_RATIO
    for _ in range(CROP_ATTEMPTS):
        area = height * width * uniform(*CROP_AREA).item()
        ratio = uniform(math.log(low), math.log(high)).exp().item()
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return below(height - h + 1), below(width - w + 1), h, w
    w = min(width, round(height * high))
    h = min(height, round(width / low))
    return (height - h) // 2, (width - w) // 2, h, w


def largest_shrink(box: Box, size: int) -> int:
    """How much a JPEG may be reduced while it is decoded: the part keeps at least `size` pixels."""
    shorter = min(box[2:])
    return next((s for s in SHRINKS if shorter >= s * size), 1)


def shrunk(box: Box, shrink: int) -> Box:
    """The box in pixels of the reduced image, to the nearest whole ones inside it."""
    top, left, height, width = box
    return round(top / shrink), round(left / shrink), height // shrink, width // shrink


def resize(pixels: np.ndarray, height: int, width: int) -> Tensor:
    """Bilinear without smoothing beforehand, as the paper's code did it."""
    if pixels.shape[:2] == (height, width):
        return torch.from_numpy(pixels)
    planes = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = F.interpolate(planes, (height, width), mode="bilinear", align_corners=False)
    return resized[0].permute(1, 2, 0)
