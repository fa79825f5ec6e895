"""Batches of images: augmented for training, central for evaluation, uint8 until the device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tasks.base import Batch, DataProblem
from tasks.imagenet.crops import SMALLEST_CROP, BadAnnotation, Object, read_objects
from tasks.imagenet.images import (
    TORCHVISION,
    Preprocessing,
    UnreadableImage,
    evaluation_image,
    training_image,
)
from tasks.imagenet.index import ImageIndex
from tasks.loading import Loaded
from tasks.seeding import python_random
from tasks.streams import Item


@dataclass
class ImageNetDataOptions:
    """`make` names a small data set that is made or fetched where there is none."""

    name: str = "imagenet"
    folder: str = "imagenet"  # below the data root
    image_size: int = 224  # side of what the model sees
    smallest_crop: float = SMALLEST_CROP  # share of the area that a training crop has at least
    preprocessing: str = "torchvision"  # or "reference": whose crops and whose resizing
    boxes: str | None = (
        None  # folder of annotations beside train/ and val/, for the reference's crops
    )
    make: str | None = None
    train_images: int | None = None  # how many there must be, and are planned with if none are
    train_every: int = 1  # of these, only every n-th image
    # Every n-th training image is validated on and never trained on; the images in val/, which
    # tuning then never sees, become the split `test`.
    validate_every: int | None = None
    max_unreadable: float = 0.0001  # share of the files; more of them end the run


@dataclass
class Images(Batch):
    """Images of an evaluation."""

    split: str = ""


class ImageBatches:
    """An Item gives its augmented image, a plain index the central one."""

    def __init__(
        self,
        index: ImageIndex,
        image_size: int,
        seed: int,
        how: Preprocessing = TORCHVISION,
        boxes: Path | None = None,
    ) -> None:
        self.index, self.image_size = index, image_size
        self.seed, self.how, self.boxes = seed, how, boxes

    def __getitems__(self, keys: list[Item] | list[int]) -> Loaded | DataProblem:
        """Unreadable images are left out, which the loss's weight accounts for."""
        size = self.image_size
        pixels = torch.empty(len(keys), size, size, 3, dtype=torch.uint8)
        micro_batches = pixels.numpy()
        labels: list[int] = []
        indices: list[int] = []
        unreadable: dict[str, str] = {}
        for key in keys:
            index = key.index if isinstance(key, Item) else key
            try:
                micro_batches[len(labels)] = self.image(key)
            except UnreadableImage as problem:
                unreadable[self.index.path(index)] = str(problem)
            else:
                labels.append(int(self.index.labels[index]))
                indices.append(index)
        if not labels:
            name, reason = next(iter(unreadable.items()))
            return DataProblem(f"{name}: cannot be read, as all images of its batch: {reason}")
        tensors = {
            "image": pixels[: len(labels)].permute(0, 3, 1, 2),  # (N, C, H, W), channels last
            "label": torch.tensor(labels),
        }
        if not isinstance(keys[0], Item):
            tensors["index"] = torch.tensor(indices)
        if unreadable:
            tensors["unreadable"] = torch.tensor(len(unreadable))
        return Loaded(tensors, len(keys), unreadable)

    def image(self, key: Item | int) -> np.ndarray:
        """uint8 (H, W, 3)."""
        if isinstance(key, Item):
            random = python_random(self.seed, "augment", key.epoch, key.index)
            path = self.index.path(key.index)
            return training_image(path, self.image_size, random, self.how, self._objects(path))
        return evaluation_image(self.index.path(key), self.image_size, self.how)

    def _objects(self, path: str) -> list[Object]:
        """What is annotated in <boxes>/<class>/<name>.xml."""
        if self.boxes is None:
            return []
        image = Path(path)
        file = self.boxes / image.parent.name / f"{image.stem}.xml"
        try:
            return read_objects(file)
        except BadAnnotation as problem:
            raise UnreadableImage(f"{file}: {problem}") from problem
