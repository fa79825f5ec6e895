"""What the model sees of an image: which part, and that the quick way is the exact one."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp  # type: ignore[import-untyped]
from torchvision.transforms import (  # type: ignore[import-untyped]
    Compose,
    InterpolationMode,
    RandomHorizontalFlip,
    RandomResizedCrop,
)
from torchvision.transforms.v2 import functional as TF  # type: ignore[import-untyped]

from tasks.imagenet import images
from tasks.imagenet.crops import torchvision_crop
from tasks.imagenet.data import ImageBatches
from tasks.imagenet.index import ImageIndex
from tasks.imagenet.jpeg import SHRINKS, Box, JpegPicture, is_available
from tasks.seeding import python_random
from tasks.streams import Item


@pytest.mark.parametrize("size", [(375, 500), (500, 333), (64, 64), (100, 150)])
def test_crops_are_distributed_as_torchvisions(size: tuple[int, int]):
    """Areas, ratios and places: two-sample Kolmogorov-Smirnov tests."""
    torch.manual_seed(0)
    image, random = torch.empty(3, *size), python_random(0)
    theirs = [RandomResizedCrop.get_params(image, [0.05, 1], [3 / 4, 4 / 3]) for _ in range(3000)]
    ours = [torchvision_crop(*size, random) for _ in range(3000)]
    for name, statistic in {
        "area": lambda top, left, height, width: height * width,
        "ratio": lambda top, left, height, width: width / height,
        "top": lambda top, left, height, width: top,
        "left": lambda top, left, height, width: left,
        "middle": lambda top, left, height, width: top + height / 2,
    }.items():
        found = ks_2samp([statistic(*box) for box in ours], [statistic(*box) for box in theirs])
        assert found.pvalue > 1e-4, name


@pytest.mark.parametrize("size", [(3, 400), (400, 3), (1, 1)])
def test_where_no_crop_fits_the_middle_is_taken_as_by_torchvision(size: tuple[int, int]):
    expected = RandomResizedCrop.get_params(torch.empty(3, *size), [0.999, 1], [3 / 4, 4 / 3])
    assert torchvision_crop(*size, python_random(0), 0.999) == tuple(expected)


def test_augmentation_depends_on_seed_epoch_and_index_only(data_root: Path):
    index = ImageIndex(data_root / "few", "train")

    def image(key: Item | int, seed: int = 0) -> np.ndarray:
        return ImageBatches(index, 16, seed).image(key)

    assert np.array_equal(image(Item(0, 3)), image(Item(0, 3)))
    for other in (image(Item(1, 3)), image(Item(0, 4)), image(Item(0, 3), seed=1), image(3)):
        assert not np.array_equal(image(Item(0, 3)), other)


class Pixels:
    """A picture that lies in memory."""

    can_shrink = True

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels
        self.height, self.width = pixels.shape[:2]

    def part(self, box: Box, shrink: int) -> np.ndarray:
        top, left, height, width = box
        reduced = self.pixels[::shrink, ::shrink]
        return reduced[top : top + height, left : left + width]


def test_half_of_the_images_are_mirrored():
    ramp = Pixels(np.tile(np.arange(200, dtype=np.uint8)[None, :, None], (200, 1, 3)))
    crops = [images.augment(ramp, 8, python_random(0, "augment", 0, i)) for i in range(200)]
    mirrored = sum(bool(crop[0, 0, 0] > crop[0, -1, 0]) for crop in crops)
    assert abs(mirrored - 100) < 4 * math.sqrt(50)  # four standard deviations


def test_evaluation_takes_the_middle():
    """(256, 512) at 224 is not resized; (128, 256) is doubled first."""
    pixels = np.random.default_rng(0).integers(0, 256, (256, 512, 3), dtype=np.uint8)
    assert np.array_equal(images.central(Pixels(pixels), 224), pixels[16:240, 144:368])
    flat = Pixels(np.full((128, 256, 3), 77, dtype=np.uint8))
    assert np.array_equal(images.central(flat, 224), np.full((224, 224, 3), 77, dtype=np.uint8))
    assert images.central(Pixels(pixels), 16).shape == (16, 16, 3)


@pytest.mark.parametrize("size", [(375, 500), (333, 500), (500, 375), (61, 64), (300, 1000)])
def test_evaluation_is_torchvisions(size: tuple[int, int]):
    """To the rounding of one level: sizes, places and pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    planes = torch.from_numpy(pixels).permute(2, 0, 1).double()
    resized = TF.resize(planes, [256], InterpolationMode.BILINEAR, antialias=False)
    expected = TF.center_crop(resized, [224, 224]).permute(1, 2, 0)
    assert np.abs(images.central(Pixels(pixels), 224) - expected.numpy()).max() <= 1


def photo(height: int, width: int, seed: int) -> Image.Image:
    """Smooth shapes with noise: what a JPEG of a photograph has to deal with."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    noise = rng.integers(-12, 13, (height, width, 1), dtype=np.int16)
    return Image.fromarray(np.clip(smooth + noise, 0, 255).astype(np.uint8))


def jpeg(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


needs_turbo = pytest.mark.skipif(not is_available(), reason="needs libjpeg-turbo 3")
KINDS = [
    {"quality": 92, "subsampling": 2},
    {"quality": 75, "subsampling": 1},
    {"quality": 97, "subsampling": 0},
    {"quality": 90, "subsampling": 2, "progressive": True},
]


@needs_turbo
@pytest.mark.parametrize("shrink", SHRINKS)
@pytest.mark.parametrize("kind", range(len(KINDS) + 1))
def test_a_part_of_a_jpeg_is_that_part_of_the_whole(kind: int, shrink: int):
    """Bit for bit, also at a reduced size, at the borders, and for grey-scale files."""
    random = python_random(shrink)
    for seed, (height, width) in enumerate([(375, 500), (500, 333), (241, 187), (17, 40)]):
        image, options = photo(height, width, seed), KINDS[kind % len(KINDS)]
        data = jpeg(image.convert("L") if kind == len(KINDS) else image, **options)
        mine, whole = JpegPicture(data), images.PillowPicture(data)
        assert (mine.height, mine.width) == (whole.height, whole.width) == (height, width)
        reduced = -(-height // shrink), -(-width // shrink)
        boxes = [torchvision_crop(*reduced, random) for _ in range(12)]
        boxes += [(0, 0, *reduced), (reduced[0] - 1, reduced[1] - 1, 1, 1)]
        full = whole.part((0, 0, *reduced), shrink)
        assert full.shape == (*reduced, 3)
        for box in boxes:
            top, left, h, w = box
            assert np.array_equal(mine.part(box, shrink), full[top : top + h, left : left + w])


def test_decoding_is_reduced_only_while_enough_pixels_are_left():
    for box, shrink in [
        ((0, 0, 447, 900), 1),
        ((3, 5, 448, 448), 2),
        ((0, 0, 895, 1000), 2),
        ((0, 0, 896, 900), 4),
        ((0, 0, 5000, 1800), 8),
    ]:
        assert images.largest_shrink(box, 224) == shrink
        assert min(images.shrunk(box, shrink)[2:]) >= min(224, *box[2:])


@pytest.mark.parametrize("height", [375, 1200])
def test_training_images_have_the_statistics_of_torchvisions_pipeline(tmp_path: Path, height: int):
    """Means and deviations of the pixels over many crops; at 1,200 decoding is reduced."""
    file = tmp_path / "a.jpg"
    file.write_bytes(jpeg(photo(height, height * 4 // 3, 1), quality=92))
    reference = Compose([RandomResizedCrop(64, scale=(0.05, 1)), RandomHorizontalFlip()])
    with Image.open(file) as opened:
        whole = opened.convert("RGB")
    torch.manual_seed(0)
    moments = []
    for make in (
        lambda i: images.training_image(str(file), 64, python_random(i)),
        lambda _: np.asarray(reference(whole)),
    ):
        crops = np.stack([make(i) for i in range(150)]).astype(np.float64)
        per_crop = crops.mean(axis=(1, 2))  # (crops, colours)
        moments.append((per_crop, crops.std(axis=(1, 2)).mean(0)))
    (mine, my_deviation), (theirs, their_deviation) = moments
    error = np.sqrt((mine.var(0) + theirs.var(0)) / len(mine))
    assert (np.abs(mine.mean(0) - theirs.mean(0)) < 4 * error).all()  # four standard errors
    # torchvision smooths before it shrinks, which takes away some of the noise.
    assert np.allclose(my_deviation, their_deviation, rtol=0.25)


@pytest.mark.parametrize(("mode", "suffix"), [("L", "JPEG"), ("CMYK", "JPEG"), ("LA", "PNG")])
@pytest.mark.parametrize("turbo", [True, False])
def test_other_colours_become_rgb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, suffix: str, turbo: bool
):
    if not turbo:
        monkeypatch.setattr(images, "is_available", lambda: False)
    file = tmp_path / f"a.{suffix}"
    Image.new("RGB", (9, 8), (100, 100, 100)).convert(mode).save(file)
    for image in (
        images.evaluation_image(str(file), 7),
        images.training_image(str(file), 7, python_random(0)),
    ):
        assert image.dtype == np.uint8
        assert image.shape == (7, 7, 3)
        assert np.abs(image.astype(int) - 100).max() <= 1  # JPEG rounds


@needs_turbo
def test_pillow_gives_the_same_training_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "a.jpg"
    file.write_bytes(jpeg(photo(600, 800, 3), quality=90))
    ours = [images.training_image(str(file), 64, python_random(i)) for i in range(20)]
    monkeypatch.setattr(images, "is_available", lambda: False)
    for i, image in enumerate(ours):
        assert np.array_equal(image, images.training_image(str(file), 64, python_random(i)))


@pytest.mark.parametrize("sides", [(40, 50), (300, 400)])
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "I;16"])
def test_pngs_are_what_pillow_makes_of_them(tmp_path: Path, mode: str, sides: tuple[int, int]):
    """Small ones, which are kept, and large ones, which are never reduced: that is for JPEGs."""
    file = tmp_path / "a.png"
    photo(*sides, 0).convert("L" if mode == "I;16" else mode).convert(mode).save(file)
    for seed in range(10):
        image = images.training_image(str(file), 32, python_random(seed))
        expected = images.augment(images.PillowPicture(file.read_bytes()), 32, python_random(seed))
        assert np.array_equal(image, expected)
    with Image.open(file) as opened:
        whole = Pixels(np.array(opened.convert("RGB")))
    assert np.array_equal(images.evaluation_image(str(file), 32), images.central(whole, 32))


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_damaged_files_are_unreadable(tmp_path: Path, name: str):
    file = tmp_path / name
    photo(60, 80, 0).save(file)
    data = file.read_bytes()
    for damaged in (b"", data[:10], data[: len(data) // 2], b"x" * 100, data[:2] + b"\0" * 60):
        file.write_bytes(damaged)
        with pytest.raises(images.UnreadableImage):
            images.training_image(str(file), 16, python_random(0))
    file.unlink()
    with pytest.raises(images.UnreadableImage, match="No such file"):
        images.evaluation_image(str(file), 16)
