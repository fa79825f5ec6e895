"""Folders of images: their order, their augmentation as a pure function, and batches of them.

Expected under the data set's root, as torchvision's ImageFolder does:

    train/<class>/*.JPEG
    val/<class>/*.JPEG

A class's label is its place in the sorted names of train's folders. Images stay uint8 in (C, H, W)
until they are on the device.
"""

from __future__ import annotations

import math
import os
import signal
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.transforms import InterpolationMode  # type: ignore[import-untyped]
from torchvision.transforms.v2 import functional as TF  # type: ignore[import-untyped]

from tasks.base import Batch, DataProblem
from tasks.seeding import torch_generator
from tasks.streams import Item

SPLITS = ("train", "val")
SUFFIXES = (".jpeg", ".jpg", ".png")
CROP_AREA = (0.05, 1.0)  # of the image's area
CROP_RATIO = (3 / 4, 4 / 3)  # width to height
CROP_ATTEMPTS = 10
RESIZE_TO_CROP = 256 / 224  # evaluation: the shorter side before the central crop
DIGITS_IMAGES = 1797
DIGITS_SIDE = 32
DIGITS_VAL_EVERY = 6


@dataclass
class ImageNetDataOptions:
    """`make: digits` lets a smoke run write its own data where there is none."""

    name: str = "imagenet"
    folder: str = "imagenet"  # below the data root
    image_size: int = 224  # side of what the model sees
    make: str | None = None
    train_images: int | None = None  # how many there must be, and are planned with if none are


# Where the images lie.


def class_names(folder: Path) -> list[str]:
    """Names of the class folders, sorted: the order of the labels."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def check_folders(root: Path, classes: int) -> None:
    """Raises DataProblem unless both splits have a folder for each of the model's classes."""
    for split in SPLITS:
        if not (root / split).is_dir():
            raise DataProblem(f"{root / split}: no such folder. {_expected(root)}")
        found = class_names(root / split)
        if not found:
            raise DataProblem(f"{root / split}: no class folders in it. {_expected(root)}")
        if len(found) != classes:
            raise DataProblem(
                f"{root / split}: {len(found):,} class folders, but the model has {classes:,}"
                " classes; they must be equal"
            )
    train, val = (set(class_names(root / split)) for split in SPLITS)
    if train != val:
        name = min(train ^ val)
        here, there = SPLITS if name in train else SPLITS[::-1]
        raise DataProblem(f"{root}: class {name!r} is in {here}/ but not in {there}/")


def _expected(root: Path) -> str:
    return (
        f"Expected {root}/train/<class>/*.JPEG and {root}/val/<class>/*.JPEG. ImageNet"
        " (ILSVRC2012) has to be obtained from https://image-net.org after registration; its"
        " validation images come in one folder and must be sorted into class folders."
    )


class ImageIndex:
    """Files and labels of one split, sorted by class and name.

    Names are kept in one array of bytes: Python's strings would be copied into every loading
    process as their reference counts change.
    """

    def __init__(self, root: Path, split: str) -> None:
        self.folder = root / split
        self.classes = class_names(root / SPLITS[0])
        names: list[bytes] = []
        labels: list[int] = []
        for label, name in enumerate(self.classes):
            files = sorted(_image_names(self.folder / name))
            if not files:
                raise DataProblem(f"{self.folder / name}: no images ({', '.join(SUFFIXES)}) in it")
            names += files
            labels += [label] * len(files)
        self.names = np.array(names, dtype=np.bytes_)
        self.labels = np.array(labels, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> Path:
        folder: Path = self.folder / self.classes[self.labels[index]]
        return folder / os.fsdecode(self.names[index])


def _image_names(folder: Path) -> Iterator[bytes]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith("."):
                yield os.fsencode(entry.name)


# What the model sees of an image.


def read_image(path: Path) -> Tensor:
    """uint8 (3, H, W), whatever the file's colours; EXIF's orientation is ignored, as by TF."""
    try:
        with Image.open(path) as image:
            tensor: Tensor = TF.pil_to_tensor(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataProblem(f"{path}: cannot be read as an image: {error}") from error
    return tensor


def crop_box(height: int, width: int, generator: torch.Generator) -> tuple[int, int, int, int]:
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


def augment(image: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """A random part of the image as a square, mirrored or not."""
    top, left, height, width = crop_box(image.shape[-2], image.shape[-1], generator)
    cropped: Tensor = TF.resized_crop(
        image, top, left, height, width, [size, size], InterpolationMode.BILINEAR, antialias=False
    )
    mirrored = torch.rand(1, generator=generator).item() < 0.5
    return cropped.flip(-1) if mirrored else cropped


def central(image: Tensor, size: int) -> Tensor:
    """The middle square of the image with its shorter side at 8/7 of the square's."""
    shorter = round(size * RESIZE_TO_CROP)
    resized = TF.resize(image, [shorter], InterpolationMode.BILINEAR, antialias=False)
    cropped: Tensor = TF.center_crop(resized, [size, size])
    return cropped


Example = dict[str, Tensor | int]


class MapDataset(Dataset[Example]):
    """An Item gives its augmented image, a plain index the central one."""

    def __init__(self, index: ImageIndex, image_size: int, seed: int) -> None:
        self.index = index
        self.image_size = image_size
        self.seed = seed

    def __getitem__(self, key: Item | int) -> Example:
        epoch, index = key if isinstance(key, Item) else (None, key)
        image = read_image(self.index.path(index))
        if epoch is None:
            image = central(image, self.image_size)
        else:
            generator = torch_generator(self.seed, "augment", epoch, index)
            image = augment(image, self.image_size, generator)
        return {"image": image, "label": int(self.index.labels[index])}

    def __getitems__(self, keys: list[Item] | list[int]) -> list[Example] | DataProblem:
        """A problem is returned: raised in a worker, it would come with the worker's traceback."""
        try:
            return [self[key] for key in keys]
        except DataProblem as problem:
            return problem


# Batches, loaded by other processes.


def load_batches(
    dataset: MapDataset, keys: Iterable[list[Item]] | Iterable[list[int]], workers: int
) -> Generator[Batch]:
    """The batches of `keys`, in order; an endless `keys` is read only a few batches ahead."""
    loader = DataLoader(
        dataset,
        batch_sampler=keys,
        num_workers=workers,
        collate_fn=_collate,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # otherwise a number is drawn from the global one
    )
    for loaded in loader:
        if isinstance(loaded, DataProblem):
            raise loaded
        yield Batch(loaded, units=len(loaded["label"]))


def _collate(examples: list[Example] | DataProblem) -> dict[str, Tensor] | DataProblem:
    if isinstance(examples, DataProblem):
        return examples
    tensors: dict[str, Tensor] = default_collate(examples)
    return tensors


def _start_worker(_: int) -> None:
    """Leaves signals to the parent: to stop well it may need batches after one to the whole group.

    The parent's own SIGTERM must still end the worker. Torch and multiprocessing send it where
    their orderly end fails (a stream in a reference cycle, an exit with a stream open), and then
    wait for the worker.
    """
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_by_parent, daemon=True).start()


def _end_by_parent() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


# The data set of the smoke scale.


def write_digits(root: Path) -> None:
    """scikit-learn's digits as JPEG files of 32×32: nothing but the size differs from ImageNet.

    Every sixth image is for validation. The folder appears complete or not at all.
    """
    if root.exists():
        _check_digits(root)
        return
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    digits = load_digits()
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{root.name}-", dir=root.parent) as temporary:
        made = Path(temporary) / root.name
        for i, (values, label) in enumerate(zip(digits.images, digits.target, strict=True)):
            folder = made / _digits_split(i) / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            grey = Image.fromarray(np.rint(values * (255 / 16)).astype(np.uint8))
            image = grey.resize((DIGITS_SIDE, DIGITS_SIDE), Image.Resampling.BILINEAR)
            image.convert("RGB").save(folder / f"{i:04}.JPEG", quality=95)
        try:
            made.rename(root)
        except OSError:
            _check_digits(root)  # another process was quicker


def _digits_split(index: int) -> str:
    return "val" if index % DIGITS_VAL_EVERY == DIGITS_VAL_EVERY - 1 else "train"


def _check_digits(root: Path) -> None:
    found = {split: len(list((root / split).glob("*/*.JPEG"))) for split in SPLITS}
    wanted = dict.fromkeys(SPLITS, 0)
    for i in range(DIGITS_IMAGES):
        wanted[_digits_split(i)] += 1
    if found != wanted:
        raise DataProblem(
            f"{root}: not the whole of the digits, {found} images instead of {wanted};"
            " remove the folder to have it made again"
        )
