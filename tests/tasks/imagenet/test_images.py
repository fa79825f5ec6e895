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
from torch import Tensor
from torchvision.transforms import (  # type: ignore[import-untyped]
    Compose,
    InterpolationMode,
    RandomHorizontalFlip,
    RandomResizedCrop,
)
from torchvision.transforms.v2 import functional as TF  # type: ignore[import-untyped]

from tasks.imagenet import images
from tasks.imagenet.data import ImageBatches
from tasks.imagenet.index import ImageIndex
from tasks.imagenet.jpeg import SHRINKS, Box, JpegPicture, is_available
from tasks.seeding import torch_generator
from tasks.streams import Item


@pytest.mark.parametrize("size", [(375, 500), (64, 64), (3, 400), (400, 3), (1, 1)])
def test_crops_are_torchvisions(size: tuple[int, int]):
    """Also those that no attempt fits, where the middle is taken."""
    for seed in range(150):
        torch.manual_seed(seed)
        expected = RandomResizedCrop.get_params(torch.empty(3, *size), [0.05, 1], [3 / 4, 4 / 3])
        assert images.crop_box(*size, torch.Generator().manual_seed(seed)) == tuple(expected)


def test_augmentation_depends_on_seed_epoch_and_index_only(data_root: Path):
    index = ImageIndex(data_root / "few", "train")

    def image(key: Item | int, seed: int = 0) -> Tensor:
        return ImageBatches(index, 16, seed).image(key)

    assert torch.equal(image(Item(0, 3)), image(Item(0, 3)))
    for other in (image(Item(1, 3)), image(Item(0, 4)), image(Item(0, 3), seed=1), image(3)):
        assert not torch.equal(image(Item(0, 3)), other)


class Pixels:
    """A picture that lies in memory."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels = pixels
        self.height, self.width = pixels.shape[:2]

    def part(self, box: Box, shrink: int) -> np.ndarray:
        top, left, height, width = box
        reduced = self.pixels[::shrink, ::shrink]
        return reduced[top : top + height, left : left + width].numpy()


def test_half_of_the_images_are_mirrored():
    ramp = Pixels(torch.arange(200, dtype=torch.uint8)[None, :, None].repeat(200, 1, 3))
    crops = [images.augment(ramp, 8, torch_generator(0, "augment", 0, i)) for i in range(200)]
    mirrored = sum(bool(crop[0, 0, 0] > crop[0, -1, 0]) for crop in crops)
    assert abs(mirrored - 100) < 4 * math.sqrt(50)  # four standard deviations


def test_evaluation_takes_the_middle():
    """(256, 512) at 224 is not resized; (128, 256) is doubled first."""
    pixels = torch.randint(0, 256, (256, 512, 3), dtype=torch.uint8)
    assert torch.equal(images.central(Pixels(pixels), 224), pixels[16:240, 144:368])
    flat = Pixels(torch.full((128, 256, 3), 77, dtype=torch.uint8))
    assert torch.equal(images.central(flat, 224), torch.full((224, 224, 3), 77, dtype=torch.uint8))
    assert images.central(Pixels(pixels), 16).shape == (16, 16, 3)


@pytest.mark.parametrize("size", [(375, 500), (333, 500), (500, 375), (61, 64), (300, 1000)])
def test_evaluation_is_torchvisions(size: tuple[int, int]):
    """To the rounding of one level: sizes, places and pixels."""
    pixels = torch.randint(0, 256, (*size, 3), dtype=torch.uint8)
    planes = pixels.permute(2, 0, 1).double()
    resized = TF.resize(planes, [256], InterpolationMode.BILINEAR, antialias=False)
    expected = TF.center_crop(resized, [224, 224]).permute(1, 2, 0)
    assert (images.central(Pixels(pixels), 224) - expected).abs().max() <= 1


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
    random = torch.Generator().manual_seed(shrink)
    for seed, (height, width) in enumerate([(375, 500), (500, 333), (241, 187), (17, 40)]):
        image, options = photo(height, width, seed), KINDS[kind % len(KINDS)]
        data = jpeg(image.convert("L") if kind == len(KINDS) else image, **options)
        mine, whole = JpegPicture(data), images.PillowPicture(data)
        assert (mine.height, mine.width) == (whole.height, whole.width) == (height, width)
        reduced = -(-height // shrink), -(-width // shrink)
        boxes = [images.crop_box(*reduced, random) for _ in range(12)]
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
        lambda i: images.training_image(file, 64, torch_generator(i)).numpy(),
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
        images.evaluation_image(file, 7),
        images.training_image(file, 7, torch_generator(0)),
    ):
        assert image.dtype == torch.uint8
        assert image.shape == (7, 7, 3)
        assert (image.int() - 100).abs().max() <= 1  # JPEG rounds


@needs_turbo
def test_pillow_gives_the_same_training_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "a.jpg"
    file.write_bytes(jpeg(photo(600, 800, 3), quality=90))
    ours = [images.training_image(file, 64, torch_generator(i)) for i in range(20)]
    monkeypatch.setattr(images, "is_available", lambda: False)
    for i, image in enumerate(ours):
        assert torch.equal(image, images.training_image(file, 64, torch_generator(i)))
