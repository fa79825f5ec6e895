"""Crops and resizing as the paper's code had them, against transcriptions of TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ks_2samp  # type: ignore[import-untyped]

from tasks.base import DataProblem, Shard
from tasks.imagenet import images
from tasks.imagenet.crops import (
    WHOLE,
    BadAnnotation,
    Object,
    read_objects,
    reference_crop,
    torchvision_crop,
)
from tasks.imagenet.images import Preprocessing, resize, resize_from_corners
from tasks.imagenet.jpeg import Box
from tasks.seeding import python_random
from tests.tasks.imagenet.few import make_task

REFERENCE = Preprocessing("reference")
CENTRAL = Object(0.1127, 0.1127, 0.8873, 0.8873)  # 60 % of the image
CORNER = Object(0.7, 0.8, 0.9, 1.0)


class TensorFlow:
    """sample_distorted_bounding_box_op.cc, in float32 and with rectangles as corners."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def sample(self, height: int, width: int, boxes: list[Object]) -> Box:
        corners: list[tuple[int, ...]] = [
            (int(b.left * width), int(b.top * height), int(b.right * width), int(b.bottom * height))
            for b in boxes
        ]
        for _ in range(100):
            ratio = np.float32(self.rng.random()) * np.float32(1.33 - 0.75) + np.float32(0.75)
            crop = self.generate(width, height, ratio)
            if crop is not None and self.satisfies(crop, corners):
                return crop[1], crop[0], crop[3] - crop[1], crop[2] - crop[0]
        return 0, 0, height, width

    def generate(self, width: int, height: int, ratio: np.float32) -> tuple[int, ...] | None:
        least = np.float32(0.05) * np.float32(width) * np.float32(height)
        most = np.float32(width) * np.float32(height)
        low, high = (int(np.rint(np.sqrt(area / ratio))) for area in (least, most))
        if int(np.rint(high * ratio)) > width:
            high = int((width + 0.5 - 1e-7) / float(ratio))
            high -= int(np.rint(high * ratio)) > width
        high = min(high, height)
        low = min(low, high)
        h = low + int(self.rng.integers(high - low + 1))
        w = int(np.rint(h * ratio))
        if w * h < least:
            h += 1
            w = int(np.rint(h * ratio))
        if w * h > most:
            h -= 1
            w = int(np.rint(h * ratio))
        if not (least <= w * h <= most and 0 < w <= width and 0 < h <= height):
            return None
        y = int(self.rng.integers(height - h)) if h < height else 0
        x = int(self.rng.integers(width - w)) if w < width else 0
        return x, y, x + w, y + h

    @staticmethod
    def satisfies(crop: tuple[int, ...], boxes: list[tuple[int, ...]]) -> bool:
        for box in boxes:
            area = (box[2] - box[0]) * (box[3] - box[1])
            across = min(crop[2], box[2]) - max(crop[0], box[0])
            down = min(crop[3], box[3]) - max(crop[1], box[1])
            if area >= 1 and min(across, down) >= 0 and across * down / area >= 0.1:
                return True
        return False


ONE_LEVEL = 1 + 1e-9  # both directions are rounded to whole levels, one after the other


STATISTICS: dict[str, Callable[..., float]] = {
    "area": lambda top, left, height, width: height * width,
    "ratio": lambda top, left, height, width: width / height,
    "height": lambda top, left, height, width: height,
    "top": lambda top, left, height, width: top,
    "left": lambda top, left, height, width: left,
    "middle": lambda top, left, height, width: left + width / 2,
}


@pytest.mark.parametrize("objects", [[], [CENTRAL], [CORNER], [CENTRAL, CORNER]])
@pytest.mark.parametrize("size", [(375, 500), (500, 333), (64, 64), (90, 400)])
def test_crops_are_distributed_as_tensorflows(size: tuple[int, int], objects: list[Object]):
    """Two-sample Kolmogorov-Smirnov tests of sizes and places."""
    random, theirs = python_random(0), TensorFlow(0)
    ours = [reference_crop(*size, random, objects=objects) for _ in range(3000)]
    expected = [theirs.sample(*size, objects or [WHOLE]) for _ in range(3000)]
    for name, statistic in STATISTICS.items():
        found = ks_2samp([statistic(*box) for box in ours], [statistic(*box) for box in expected])
        assert found.pvalue > 1e-4, name


def test_torchvisions_crops_are_others():
    random, theirs = python_random(0), TensorFlow(0)
    ours = [torchvision_crop(375, 500, random) for _ in range(3000)]
    expected = [theirs.sample(375, 500, [WHOLE]) for _ in range(3000)]
    areas = [[h * w for *_, h, w in boxes] for boxes in (ours, expected)]
    assert ks_2samp(*areas).pvalue < 1e-6


def moments_without_boxes(height: int, width: int) -> tuple[float, float]:
    """Mean and deviation of the area's share, by integration over ratio and height.

    The height is uniform from h5 to the most that fits, and what is below h10 is drawn again, where
    the crop would have 5 % and 10 % of the area.
    """
    ratio = np.linspace(0.75, 1.33, 20_001)
    area = height * width
    most = np.minimum(np.minimum(height, width / ratio), np.sqrt(area / ratio))
    h5, h10 = np.sqrt(0.05 * area / ratio), np.sqrt(0.1 * area / ratio)
    density = 1 / (most - h5)
    whole = ((most - h10) * density).mean()
    first = (ratio * (most**3 - h10**3) / 3 * density).mean() / area
    second = (ratio**2 * (most**5 - h10**5) / 5 * density).mean() / area**2
    mean = first / whole
    return mean, float(np.sqrt(second / whole - mean**2))


@pytest.mark.parametrize("size", [(375, 500), (500, 500)])
def test_moments_of_the_area(size: tuple[int, int]):
    """At 375 × 500 the mean is 0.387, with whole pixels 0.388; torchvision's is 0.417."""
    mean, deviation = moments_without_boxes(*size)
    if size == (375, 500):
        assert mean == pytest.approx(0.387, abs=5e-4)
    random, count = python_random(1), 20_000
    area = size[0] * size[1]
    shares = np.array(
        [h * w / area for *_, h, w in (reference_crop(*size, random) for _ in range(count))]
    )
    rounding = 0.002  # of both sides to whole pixels
    assert abs(shares.mean() - mean) < 4 * deviation / np.sqrt(count) + rounding
    assert abs(shares.std() - deviation) < 4 * deviation / np.sqrt(count) + rounding
    assert shares.min() >= 0.1
    others = [h * w / area for *_, h, w in (torchvision_crop(*size, random) for _ in range(count))]
    assert np.mean(others) > mean + 0.02


def test_an_object_that_no_crop_covers_leaves_the_whole_image():
    assert reference_crop(90, 120, python_random(0), objects=[Object(0, 0, 0.001, 0.001)]) == (
        0, 0, 90, 120
    )  # fmt: skip
    assert reference_crop(3, 400, python_random(0)) == (0, 0, 3, 400)


def tensorflow_1_bilinear(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """resize_images(…, align_corners=False) of TensorFlow 1, in float64."""
    out = pixels.astype(np.float64)
    for axis, size in ((0, height), (1, width)):
        old = out.shape[axis]
        at = np.arange(size) * (old / size)
        low = np.floor(at).astype(int)
        share = (at - low).reshape([-1 if i == axis else 1 for i in range(3)])
        upper = np.minimum(low + 1, old - 1)
        out = out.take(low, axis) * (1 - share) + out.take(upper, axis) * share
    return out


@pytest.mark.parametrize("size", [(375, 500), (100, 80), (224, 300), (1, 7), (449, 224), (500, 3)])
def test_resizing_is_tensorflow_1s(size: tuple[int, int]):
    """To the rounding of both directions."""
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    expected = tensorflow_1_bilinear(pixels, 224, 224)
    assert np.abs(resize_from_corners(pixels, 224, 224) - expected).max() <= ONE_LEVEL
    assert np.abs(resize(pixels, 224, 224) - expected).max() > 20  # between centres


def test_half_a_pixel_lies_between_both_ways_of_resizing():
    """By a factor s, images lie (s - 1) / 2 old pixels apart."""
    ramp = np.repeat(np.arange(0, 250, dtype=np.uint8)[None, :, None], 250, axis=0).repeat(
        3, axis=2
    )
    apart = resize(ramp, 97, 97)[:, 5:92, 0].astype(float)
    apart -= resize_from_corners(ramp, 97, 97)[:, 5:92, 0]
    assert apart.mean() == pytest.approx((250 / 97 - 1) / 2, abs=0.05)


class Pixels:
    """A picture that lies in memory and can't be reduced."""

    can_shrink = True

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels
        self.height, self.width = pixels.shape[:2]

    def part(self, box: Box, shrink: int) -> np.ndarray:
        assert shrink == 1, "the paper's code decodes at full size"
        top, left, height, width = box
        return self.pixels[top : top + height, left : left + width]


def test_a_crop_is_mirrored_and_then_resized():
    """Not the other way round, which is another image where pixels are counted from corners."""
    pixels = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), dtype=np.uint8)
    mirrored = 0
    for seed in range(20):
        random = python_random(seed)
        top, left, height, width = reference_crop(900, 1200, random)
        crop = pixels[top : top + height, left : left + width]
        if random.random() < 0.5:
            crop = crop[:, ::-1]
            mirrored += 1
        found = images.augment(Pixels(pixels), 64, python_random(seed), REFERENCE)
        assert np.abs(found - tensorflow_1_bilinear(crop, 64, 64)).max() <= ONE_LEVEL
    assert 3 < mirrored < 17


@pytest.mark.parametrize("size", [(375, 500), (343, 500), (500, 375), (61, 64), (107, 320)])
def test_evaluation_is_the_papers(size: tuple[int, int]):
    """Sizes by float32, places rounded down, pixels to the rounding of one level."""
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    scale = np.float32(256) / np.float32(min(size))
    height, width = (int(np.float32(side) * scale) for side in size)
    top, left = (height - 224) // 2, (width - 224) // 2
    resized = tensorflow_1_bilinear(pixels, height, width)
    expected = resized[top : top + 224, left : left + 224]
    assert np.abs(images.central(Pixels(pixels), 224, REFERENCE) - expected).max() <= ONE_LEVEL


ANNOTATION = """<annotation><folder>n01440764</folder><filename>a</filename>
<size><width>500</width><height>200</height><depth>3</depth></size>
<object><name>n01440764</name><bndbox>
<xmin>50</xmin><ymin>20</ymin><xmax>250</xmax><ymax>210</ymax></bndbox></object>
<object><name>tench</name><bndbox>
<xmin>0</xmin><ymin>0</ymin><xmax>100</xmax><ymax>100</ymax></bndbox></object>
<object><name>n02084071</name><bndbox>
<xmin>0</xmin><ymin>0</ymin><xmax>400</xmax><ymax>100</ymax></bndbox></object>
<object><name>n01440764</name><bndbox>
<xmin>90</xmin><ymin>20</ymin><xmax>90</xmax><ymax>100</ymax></bndbox></object>
</annotation>"""


def test_annotations(tmp_path: Path):
    """Cut at the image; a name may stand for the class, another class and an empty box may not."""
    file = tmp_path / "n01440764" / "a.xml"
    assert read_objects(file) == []
    file.parent.mkdir()
    file.write_text(ANNOTATION)
    assert read_objects(file) == [Object(0.1, 0.1, 1.0, 0.5), Object(0.0, 0.0, 0.5, 0.2)]
    for damaged in (
        "",
        "<annotation>",
        ANNOTATION.replace("500", "0"),
        ANNOTATION.replace("50<", "x<"),
    ):
        file.write_text(damaged)
        with pytest.raises(BadAnnotation, match="not an annotation of ILSVRC"):
            read_objects(file)


def test_boxes_change_the_crops_of_annotated_images_only(data_root: Path, tmp_path: Path):
    task = make_task(data_root)
    task.data_options.preprocessing = "reference"
    plain = next(task.train_stream(Shard(), 0)).tensors["image"]
    task = make_task(data_root)
    boxes = tmp_path / "boxes"
    task.data_options.preprocessing, task.data_options.boxes = "reference", str(boxes)
    with pytest.raises(DataProblem, match=r"boxes: no such folder \(data.boxes\)"):
        task.prepare_data()
    index = task._images("train").index
    for number in range(0, len(index), 2):
        image = Path(index.path(number))
        file = boxes / image.parent.name / f"{image.stem}.xml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            "<annotation><size><width>100</width><height>100</height></size><object><name>x</name>"
            "<bndbox><xmin>80</xmin><ymin>80</ymin><xmax>99</xmax><ymax>99</ymax></bndbox></object>"
            "</annotation>"
        )
    task.prepare_data()
    boxed = next(task.train_stream(Shard(), 0)).tensors["image"]
    same = (plain == boxed).flatten(1).all(1)
    assert same.any()
    assert not same.all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preprocessing": "tf"}, "data.preprocessing: must be one of reference, torchvision"),
        ({"boxes": "boxes"}, "data.boxes needs data.preprocessing=reference"),
    ],
)
def test_bad_options(data_root: Path, options: dict[str, str], message: str):
    task = make_task(data_root)
    for name, value in options.items():
        setattr(task.data_options, name, value)
    with pytest.raises(DataProblem, match=message):
        task.prepare_data()
