"""`python -m scripts.bench_input`: images per second and core, ours against torchvision's pipeline.

The same files for both, on one thread, taking turns image by image: from the file on disk to what
a batch is made of. Torchvision's is that of its reference training script (Pillow, random resized
crop, flip, tensor, float, normalised), with the paper's crop areas; ours stays uint8 until the
device. The files are made from two photographs, in sizes, qualities and bytes as ImageNet's are.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.progress import track
from torchvision import transforms  # type: ignore[import-untyped]

from engine.memory import keep_freed_memory
from tasks.imagenet import images, jpeg
from tasks.seeding import python_random

TARGET = 1.5
ROUNDS = 5
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


def torchvisions() -> Callable[[Path, int], object]:
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


def seconds_per_image(
    files: list[Path], ways: dict[str, Callable[[Path, int], object]], what: str
) -> dict[str, float]:
    """Means over the files of each file's quickest of some rounds: other load only adds time."""
    times = {name: np.full((ROUNDS, len(files)), np.inf) for name in ways}
    quiet = not sys.stdout.isatty()
    for step in track(range(ROUNDS * len(files)), what, transient=True, disable=quiet):
        rounds, index = divmod(step, len(files))
        for name, way in ways.items():
            before = time.perf_counter()
            way(files[index], index)
            times[name][rounds, index] = time.perf_counter() - before
    return {name: float(found.min(axis=0).mean()) for name, found in times.items()}


def main() -> int:
    """Prints a table per kind of file; exit status 0 whatever the ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=240, help="files of each kind")
    options = parser.parse_args()
    if options.images < 1:
        parser.error("--images must be at least 1")
    torch.set_num_threads(1)
    keep_freed_memory()  # for all ways alike
    ways: dict[str, Callable[[Path, int], object]] = {"torchvision": torchvisions()}
    if jpeg.is_available():
        ways["ours"] = ours
    ways["ours, Pillow"] = with_pillow
    print(f"one thread, torch {torch.__version__}, Pillow {Image.__version__}")
    for kind, sizes in (("usual", USUAL), ("large", LARGE)):
        with tempfile.TemporaryDirectory() as folder:
            files = make_photos(Path(folder), options.images, sizes)
            weight = sum(file.stat().st_size for file in files) / len(files)
            found = seconds_per_image(files, ways, kind)
        print(f"{kind} files: {len(files)}, {weight / 1000:.0f} kB on average")
        for name, seconds in found.items():
            ratio = found["torchvision"] / seconds
            verdict = ""
            if name == "ours" and kind == "usual":
                reached = "reached" if ratio >= TARGET else "not reached"
                verdict = f"  (at least {TARGET}: {reached})"
            print(f"  {name:13} {1 / seconds:6.0f} images/s   {ratio:.2f} ×{verdict}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
