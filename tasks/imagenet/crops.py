"""Which part of an image a training step sees: as the paper's code draws it, or as torchvision.

The paper's code calls TensorFlow's sample_distorted_bounding_box (OpenSeq2Seq, data/image2label/
imagenet_preprocessing.py; tensorflow/core/kernels/sample_distorted_bounding_box_op.cc). The ratio
is uniform, not its logarithm; the height is uniform between what the least area and the image
allow, not the area; and a crop must cover a tenth of an object's box, or of the image where no box
is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple
from xml.etree import ElementTree

from tasks.imagenet.ilsvrc2012 import WNID
from tasks.imagenet.jpeg import Box

SMALLEST_CROP = 0.05  # of the image's area
CROP_RATIO = (3 / 4, 4 / 3)  # width to height
CROP_ATTEMPTS = 10
REFERENCE_RATIO = (0.75, 1.33)
REFERENCE_ATTEMPTS = 100
LEAST_COVERED = 0.1  # of an object


class Object(NamedTuple):
    """Where an object is, in shares of the image's height and width: 0 … 1."""

    top: float
    left: float
    bottom: float
    right: float


WHOLE = Object(0.0, 0.0, 1.0, 1.0)


class BadAnnotation(Exception):
    """A file of boxes that can't be read; the message has no name."""


def torchvision_crop(
    height: int, width: int, random: Random, smallest: float = SMALLEST_CROP
) -> Box:
    """Top, left, height and width, distributed as torchvision's RandomResizedCrop has them."""
    low, high = CROP_RATIO
    for _ in range(CROP_ATTEMPTS):
        area = height * width * random.uniform(smallest, 1.0)
        ratio = math.exp(random.uniform(math.log(low), math.log(high)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randrange(height - h + 1), random.randrange(width - w + 1), h, w
    w = min(width, round(height * high))
    h = min(height, round(width / low))
    return (height - h) // 2, (width - w) // 2, h, w


def reference_crop(
    height: int,
    width: int,
    random: Random,
    smallest: float = SMALLEST_CROP,
    objects: Sequence[Object] = (),
) -> Box:
    """Top, left, height and width, distributed as TensorFlow's sample_distorted_bounding_box.

    The whole image where a hundred attempts fail.
    """
    boxes = [_in_pixels(some, height, width) for some in objects or (WHOLE,)]
    for _ in range(REFERENCE_ATTEMPTS):
        size = _draw_size(height, width, random.uniform(*REFERENCE_RATIO), smallest, random)
        if size is None:
            continue
        h, w = size
        # The last place is never drawn, unless it is the only one.
        top = random.randrange(height - h) if h < height else 0
        left = random.randrange(width - w) if w < width else 0
        if any(_covers((top, left, h, w), box) for box in boxes):
            return top, left, h, w
    return 0, 0, height, width


def _draw_size(
    height: int, width: int, ratio: float, smallest: float, random: Random
) -> tuple[int, int] | None:
    """Height, uniform over all that the ratio leaves, and width; None if rounding spoils it."""
    largest_area = height * width
    least_area = smallest * largest_area
    least = round(math.sqrt(least_area / ratio))
    most = round(math.sqrt(largest_area / ratio))
    if round(most * ratio) > width:
        most = int((width + 0.5 - 1e-7) / ratio)
        if round(most * ratio) > width:
            most -= 1
    most = min(most, height)
    h = random.randint(least, most) if least < most else most
    w = round(h * ratio)
    if h * w < least_area:  # by its rounding
        h += 1
        w = round(h * ratio)
    fits = h * w >= least_area and 0 < h <= height and 0 < w <= width
    return (h, w) if fits else None


def _in_pixels(some: Object, height: int, width: int) -> Box:
    top, left = int(some.top * height), int(some.left * width)
    return top, left, int(some.bottom * height) - top, int(some.right * width) - left


def _covers(crop: Box, box: Box) -> bool:
    """Whether a crop has enough of a box; a box without a pixel is covered by none."""
    area = box[2] * box[3]
    common = [
        max(0, min(crop[i] + crop[i + 2], box[i] + box[i + 2]) - max(crop[i], box[i]))
        for i in (0, 1)
    ]
    return area >= 1 and common[0] * common[1] / area >= LEAST_COVERED


def read_objects(file: Path) -> list[Object]:
    """The boxes of one of ILSVRC's annotations, cut at the image; none where there is no such file.

    Less than half of the training images have one. Boxes of another class are left out, as by the
    script that wrote the reference's records; some have a name in place of the class's number.
    """
    try:
        root = ElementTree.fromstring(file.read_bytes())
        size = [float(root.findtext(f"size/{side}", "")) for side in ("height", "width")]
        objects = []
        for found in root.iterfind("object"):
            name = found.findtext("name", "")
            if name != file.parent.name and WNID.fullmatch(name):
                continue
            corners = [
                float(found.findtext(f"bndbox/{corner}", "")) / size[i % 2]
                for i, corner in enumerate(("ymin", "xmin", "ymax", "xmax"))
            ]
            one = Object(*(min(max(share, 0.0), 1.0) for share in corners))
            if one.top < one.bottom and one.left < one.right:
                objects.append(one)
    except FileNotFoundError:
        return []
    except (OSError, ElementTree.ParseError, ValueError, ZeroDivisionError) as error:
        raise BadAnnotation(f"not an annotation of ILSVRC: {error}") from error
    return objects
