"""`make bench-input`: images per second and core, ours against torchvision's pipeline.

The same files for both, on one thread, taking turns: from the file on disk to what
a batch is made of. Torchvision's is that of its reference training script (Pillow, random resized
crop, flip, tensor, float, normalised), with the paper's crop areas; ours stays uint8 until the
device. The files are made from two photographs, in sizes, qualities and bytes as ImageNet's are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision import transforms  # type: ignore[import-untyped]

from analysis.performance import Measurement
from benchmarks.contest import BenchOptions, Findings, judge, seconds, take_turns
from tasks.imagenet import images, jpeg
from tasks.imagenet.crops import torchvision_crop
from tasks.seeding import python_random

Load = Callable[[Path, int], object]
ROUNDS = 4  # of every chunk
CHUNK = 24  # files of a turn
SIZE = 224
# (longer side, shorter side): most of ImageNet's files, and the share of large ones.
USUAL, LARGE = ((500, 375), (500, 333), (400, 300)), ((1600, 1200), (1024, 768))


def make_photos(folder: Path, count: int, sizes: tuple[tuple[int, int], ...]) -> list[Path]:
    """Parts of two photographs with a camera's noise, as JPEGs of qualities 85 to 96."""
    from sklearn.datasets import load_sample_images  # type: ignore[import-untyped]

    photos = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    rng = np.random.default_rng(0)
    files = []
    for i in range(count):
        photo, (width, height) = photos[i % len(photos)], sizes[i % len(sizes)]
        zoom = rng.uniform(0.7, 1.0)
        w = int(min(photo.width, photo.height * width / height) * zoom)
        h = w * height // width
        left = int(rng.integers(photo.width - w + 1))
        top = int(rng.integers(photo.height - h + 1))
        part = photo.crop((left, top, left + w, top + h))
        pixels = np.asarray(part.resize((width, height), Image.Resampling.BICUBIC), np.float32)
        noisy = np.clip(pixels + rng.normal(0, 8, (height, width, 1)), 0, 255).astype(np.uint8)
        upright = noisy.transpose(1, 0, 2) if rng.random() < 0.25 else noisy
        file = folder / f"{i:04}.JPEG"
        sampling = 2 if rng.random() < 0.7 else 0
        quality = int(rng.integers(85, 97))
        Image.fromarray(upright).save(file, quality=quality, subsampling=sampling)
        files.append(file)
    return files


def torchvisions() -> Load:
    """What torchvision's reference script does with an image."""
    chain = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE, (images.TORCHVISION.smallest, 1.0), antialias=True),
            transforms.RandomHorizontalFlip(0.5),
            transforms.PILToTensor(),
            transforms.ConvertImageDtype(torch.float),
            transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
        ]
    )

    def load(path: Path, _: int) -> object:
        with path.open("rb") as file:
            return chain(Image.open(file).convert("RGB"))

    return load


def ours(path: Path, index: int) -> object:
    """What a loading process does with an image."""
    return images.training_image(str(path), SIZE, python_random(0, "augment", 0, index))


def with_pillow(path: Path, index: int) -> object:
    """The same where libjpeg-turbo is missing."""
    random = python_random(0, "augment", 0, index)
    return images.augment(images.PillowPicture(path.read_bytes()), SIZE, random)


def measure(options: BenchOptions) -> Findings:
    """Usual and large files; on one thread, as a loading process has."""
    torch.set_num_threads(1)
    found = Findings()
    for kind, sizes, count in (("usual", USUAL, 10 * CHUNK), ("large", LARGE, 2 * CHUNK)):
        with tempfile.TemporaryDirectory() as folder:
            files = make_photos(Path(folder), count, sizes)
            found.detail[f"{kind}_kilobytes"] = sum(f.stat().st_size for f in files) / count / 1000
            ways: dict[str, Load] = {kind: ours} if jpeg.is_available() else {}
            if kind == "usual":
                ways["usual_pillow"] = with_pillow
            measured = compete_on(files, ways, options.rounds(ROUNDS))
            found.measurements += [
                with_limit(m, files) if m.contest == kind else m for m in measured
            ]
    return found


def with_limit(found: Measurement, files: list[Path]) -> Measurement:
    """With our share of the speed at which the crops' bits alone are decoded."""
    some = [*enumerate(files)][:CHUNK]
    decode = lambda: [entropy_decoded(path, index) for index, path in some]  # noqa: E731
    alone = min(seconds(decode) for _ in range(ROUNDS)) / len(some)
    return replace(found, limit="entropy decoding alone", of_limit=found.ours * alone)


def entropy_decoded(path: Path, index: int) -> object:
    """The same crop at an eighth of its size, for which all bits are read, and little else done."""
    picture = jpeg.JpegPicture(path.read_bytes())
    random = python_random(0, "augment", 0, index)
    smallest = images.TORCHVISION.smallest
    top, left, height, width = torchvision_crop(picture.height, picture.width, random, smallest)
    return picture.part((top // 8, left // 8, max(1, height // 8), max(1, width // 8)), 8)


def compete_on(files: list[Path], ways: dict[str, Load], rounds: int) -> list[Measurement]:
    """A round is a chunk of the files, the same for all."""
    reference = torchvisions()
    everyone = {**ways, " theirs": reference, " again": reference}

    def timed(load: Load, first: int) -> Callable[[], float]:
        some = [*enumerate(files)][first : first + CHUNK]
        return lambda: seconds(lambda: [load(path, index) for index, path in some])

    turns: list[dict[str, float]] = []
    for first in range(0, len(files), CHUNK):
        chunk = {name: timed(load, first) for name, load in everyone.items()}
        turns += take_turns(chunk, rounds, warm=1 if first == 0 else 0)
    theirs, again = ([turn[name] for turn in turns] for name in (" theirs", " again"))
    return [
        judge(name, [turn[name] for turn in turns], theirs, again, amount=CHUNK) for name in ways
    ]
