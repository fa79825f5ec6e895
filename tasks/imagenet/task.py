"""ImageNet: cross entropy over images, and how many have their label among the first k."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tasks.base import Batch, Carry, Context, Counts, DataProblem, Headline, LossOut, Shard
from tasks.imagenet.cifar10 import make_cifar10
from tasks.imagenet.data import ImageBatches, ImageNetDataOptions, Images
from tasks.imagenet.digits import make_digits
from tasks.imagenet.ilsvrc2012 import ILSVRC2012
from tasks.imagenet.images import MEANS, PREPROCESSINGS, RANGE, Preprocessing
from tasks.imagenet.index import ImageIndex, check_classes, check_folders
from tasks.imagenet.model import ResNet, ResNetOptions
from tasks.imagenet.predict import ImagePredictions
from tasks.loading import Unreadable, check_max_unreadable, load_batches
from tasks.making import Makers, make_data
from tasks.manifests import describe_data
from tasks.streams import (
    eval_micro_batches,
    examples_to_train_on,
    micro_batches_of_step,
    shuffled_micro_batches,
)

PAPER = "imagenet"  # the data set of the paper
OFFICIAL = {
    "train": {"images": ILSVRC2012.train_images},
    "val": {"images": ILSVRC2012.val_images},
}
MAKERS: Makers = {"digits": make_digits, "cifar10": make_cifar10}


class ImageNet(ImagePredictions):
    """Tables 1, 2 and 3."""

    unit = "image"
    headline = Headline("val", "top1", higher_is_better=True)
    splits = ("val",)
    final_splits: tuple[str, ...] = ()  # type: ignore[misc]  # a run's own
    fixed_shapes = True
    normalises_batches = True
    loads_in_processes = True
    ModelOptions = ResNetOptions
    DataOptions = ImageNetDataOptions

    model_options: ResNetOptions
    data_options: ImageNetDataOptions

    def __init__(self, model: Any, data: Any, context: Context) -> None:
        super().__init__(model, data, context)
        self.final_splits = () if data.validate_every is None else ("test",)

    @property
    def root(self) -> Path:
        return self.context.data_root / self.data_options.folder

    def prepare_data(self) -> None:
        self._check_subsets()
        if self.data_options.image_size < 1:
            side = self.data_options.image_size
            raise DataProblem(f"data.image_size: must be at least 1, not {side}")
        check_max_unreadable(self.data_options.max_unreadable)
        self._check_preprocessing()
        make_data(self.data_options.make, MAKERS, self.root)
        check_folders(self.root, self.model_options.classes)
        for split in ("train", *self.splits, *self.final_splits):
            assert len(self._images(split).index)  # the list of files is then there for workers

    def _check_subsets(self) -> None:
        every, validate = self.data_options.train_every, self.data_options.validate_every
        if every < 1:
            raise DataProblem(f"data.train_every: must be at least 1, not {every}")
        if validate is not None and validate < 2:
            raise DataProblem(f"data.validate_every: must be at least 2 or null, not {validate}")

    def _check_preprocessing(self) -> None:
        options = self.data_options
        if options.preprocessing not in PREPROCESSINGS:
            raise DataProblem(
                f"data.preprocessing: must be one of {', '.join(PREPROCESSINGS)}, not "
                f"{options.preprocessing!r}"
            )
        if options.boxes is None:
            return
        if options.preprocessing != "reference":
            raise DataProblem("data.boxes needs data.preprocessing=reference: only it uses boxes")
        if not (self.root / options.boxes).is_dir():
            raise DataProblem(
                f"{self.root / options.boxes}: no such folder (data.boxes). Expected "
                f"{self.root / options.boxes}/<class>/*.xml of ILSVRC2012_bbox_train_v2.tar.gz"
            )

    def prepare_evaluation(self, splits: Sequence[str]) -> None:
        make_data(self.data_options.make, MAKERS, self.root)
        for split in splits:
            assert len(self._images(split).index)

    @property
    def epoch_units(self) -> int:
        images = self.data_options.train_images
        if images is None or (self.root / "train").is_dir():
            images = len(self._images("train").index)
        return len(self._trained_on(images))

    def baseline_metrics(self) -> tuple[str, dict[str, float]]:
        classes = self.model_options.classes
        splits = (*self.splits, *self.final_splits)
        metrics = {f"{s}/top{k}": 100 * min(1.0, k / classes) for s in splits for k in (1, 5)}
        return "chance", metrics

    def data_manifest(self) -> dict[str, Any]:
        names = ("train", *self.splits, *self.final_splits)
        indices = {name: self._images(name).index for name in names}
        counts = {split: {"images": len(index)} for split, index in indices.items()}
        sums = {split: index.digest() for split, index in indices.items()}
        name = self.data_options.name
        return describe_data(self.root, name, counts, sums, OFFICIAL if name == PAPER else {})

    def build_model(self) -> nn.Module:
        return ResNet(self.model_options)

    def example_batch(self) -> Batch:
        count, side = self.context.micro, self.data_options.image_size
        images = torch.zeros(count, 3, side, side, dtype=torch.uint8)
        return Batch({"image": images, "label": torch.zeros(count, dtype=torch.int64)}, count)

    def train_stream(self, shard: Shard, position: int) -> Iterator[Batch]:
        context, images = self.context, self._images("train")
        chosen = self._trained_on(len(images.index))
        shuffled = shuffled_micro_batches(len(chosen), context.micro, context.seed)
        keys = micro_batches_of_step(
            lambda epoch: [chosen[micro_batch] for micro_batch in shuffled(epoch)],
            self.steps_per_epoch,
            context.micro_batches,
            shard,
            position,
        )
        return self._load(images, keys)

    def eval_batches(self, split: str, shard: Shard) -> Iterator[Batch]:
        known = (*self.splits, *self.final_splits)
        if split not in known:
            raise ValueError(f"ImageNet: split must be one of {known}, not {split!r}")
        images = self._images(split)
        keys = map(list, eval_micro_batches(len(images.index), self.context.eval_batch, shard))
        batches = self._load(images, keys)
        return (Images(batch.tensors, batch.units, split) for batch in batches)

    def _load(self, source: ImageBatches, keys: Iterable[Sequence[Any]]) -> Iterator[Batch]:
        allowed = self.data_options.max_unreadable
        unreadable = Unreadable(allowed, len(source.index), "data.max_unreadable")
        return load_batches(source, keys, self.context.data_workers, unreadable)

    def loss(self, model: nn.Module, batch: Batch, carry: Carry) -> LossOut:
        logits = _logits(model, batch)
        total = F.cross_entropy(logits, batch.tensors["label"], reduction="sum")
        return LossOut(total, float(len(logits)))

    def count(self, model: nn.Module, batch: Batch, carry: Carry) -> tuple[Counts, Carry]:
        logits, labels = _logits(model, batch), batch.tensors["label"]
        place = places(logits, labels)
        top1, top5 = torch.stack([(place < 1).sum(), (place < 5).sum()]).tolist()
        loss = F.cross_entropy(logits, labels, reduction="sum").item()
        if self.predictions is not None:
            assert isinstance(batch, Images)
            self.keep(batch, logits)
        counts = {"images": float(len(labels)), "top1": top1, "top5": top5, "loss": loss}
        return counts | {"unreadable": float(batch.tensors.get("unreadable", 0))}, None

    def summarize(self, split: str, counts: Mapping[str, float]) -> dict[str, float]:
        """An image that can't be read is one that was not recognised."""
        images = counts["images"] + counts["unreadable"]
        return {
            "top1": 100 * counts["top1"] / images,
            "top5": 100 * counts["top5"] / images,
            "loss": counts["loss"] / counts["images"],
        }

    def _images(self, split: str) -> ImageBatches:
        if split not in self._opened:
            self._opened[split] = self._open(split)
        return self._opened[split]

    @cached_property
    def _opened(self) -> dict[str, ImageBatches]:
        return {}

    def _open(self, split: str) -> ImageBatches:
        validate = self.data_options.validate_every
        if validate is None:
            return self._dataset(split)
        if split == "val":
            images = self._dataset("train")
            images.index = images.index.subset(np.arange(0, len(images.index), validate))
            return images
        return self._dataset("val" if split == "test" else split)

    def _trained_on(self, images: int) -> np.ndarray:
        """Indices of the training images that are trained on."""
        return examples_to_train_on(
            images, self.data_options.train_every, self.data_options.validate_every
        )

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        return _logits(model, batch)

    def image_path(self, split: str, index: int) -> Path:
        return Path(self._images(split).index.path(index)).relative_to(self.root)

    def _dataset(self, split: str) -> ImageBatches:
        if self.given_classes is None:
            check_folders(self.root, self.model_options.classes)
        else:
            check_classes(self.root / split, self.given_classes)
        index = ImageIndex(self.root, split, self.given_classes)
        wanted = self.data_options.train_images
        if split == "train" and wanted is not None and len(index) != wanted:
            raise DataProblem(
                f"{self.root / split}: {len(index):,} images, but there must be {wanted:,} "
                "(data.train_images); is the set complete?"
            )
        options = self.data_options
        how = Preprocessing(options.preprocessing, options.smallest_crop)
        boxes = None if options.boxes is None else self.root / options.boxes
        return ImageBatches(index, options.image_size, self.context.seed, how, boxes)


def places(logits: Tensor, labels: Tensor) -> Tensor:
    """How many classes stand before the label: 0 is first.

    Of equal logits the lower class comes first, so a constant output is right for one class only.
    Logits that are not a number beat the label, so a diverged model is wrong.
    """
    own = logits.gather(1, labels[:, None])
    classes = torch.arange(logits.shape[1], device=logits.device)
    behind = (logits < own) | ((logits == own) & (classes > labels[:, None]))
    return logits.shape[1] - 1 - behind.sum(1)


def _logits(model: nn.Module, batch: Batch) -> Tensor:
    """In float32 or float64, also where autocast or half-precision weights made them shorter."""
    images = batch.tensors["image"]
    dtype = torch.float32 if _autocast(images.device.type) else next(model.parameters()).dtype
    logits: Tensor = model(normalise(images, dtype))
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _autocast(device: str) -> bool:
    """Torch's own question raises for devices that have no autocast, as `meta`."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def normalise(images: Tensor, dtype: torch.dtype) -> Tensor:
    """0 … 255 to about -1 … 1, as the paper's code does; the channels' deviations are left."""
    wide = torch.promote_types(dtype, torch.float32)
    # Filled on the device: a copy of the means from the host would wait for it.
    means = torch.stack([torch.full((), m, dtype=wide, device=images.device) for m in MEANS])
    return images.to(wide).sub(means[:, None, None]).div_(RANGE).to(dtype)
