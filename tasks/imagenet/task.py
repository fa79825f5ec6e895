"""ImageNet: cross entropy over images, and how many have their label among the first k."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tasks.base import Batch, Carry, Counts, DataProblem, Headline, LossOut, Shard, Task
from tasks.imagenet.cifar10 import make_cifar10
from tasks.imagenet.data import ImageBatches, ImageNetDataOptions
from tasks.imagenet.digits import make_digits
from tasks.imagenet.index import ImageIndex, check_folders
from tasks.imagenet.model import ResNet, ResNetOptions
from tasks.loading import Unreadable, load_batches
from tasks.making import make_data
from tasks.streams import eval_slots, shuffled_slots, slots_of_step

MEANS = (123.68, 116.78, 103.94)  # red, green, blue, of 0 … 255
RANGE = 127.5
MAKERS = {"digits": make_digits, "cifar10": make_cifar10}


class ImageNet(Task):
    """Tables 1, 2 and 3."""

    unit = "image"
    headline = Headline("val", "top1", higher_is_better=True)
    splits = ("val",)
    ModelOptions = ResNetOptions
    DataOptions = ImageNetDataOptions

    model_options: ResNetOptions
    data_options: ImageNetDataOptions

    @property
    def root(self) -> Path:
        return self.context.data_root / self.data_options.folder

    def check_data(self) -> None:
        if self.data_options.train_every < 1:
            every = self.data_options.train_every
            raise DataProblem(f"data.train_every: must be at least 1, not {every}")
        make_data(self.data_options.make, MAKERS, self.root)
        check_folders(self.root, self.model_options.classes)
        for split in (self._train, self._val):  # the list of files is then there for every worker
            assert len(split.index)

    @property
    def epoch_units(self) -> int:
        images = self.data_options.train_images
        if images is None or (self.root / "train").is_dir():
            images = len(self._train.index)
        return images // self.data_options.train_every

    def trivial(self) -> tuple[str, dict[str, float]]:
        classes = self.model_options.classes
        return "chance", {f"val/top{k}": 100 * min(1.0, k / classes) for k in (1, 5)}

    def build_model(self) -> nn.Module:
        return ResNet(self.model_options)

    def example_batch(self) -> Batch:
        count, side = self.context.micro, self.data_options.image_size
        images = torch.zeros(count, 3, side, side, dtype=torch.uint8)
        return Batch({"image": images, "label": torch.zeros(count, dtype=torch.int64)}, count)

    def train_stream(self, shard: Shard, position: int) -> Iterator[Batch]:
        context, every = self.context, self.data_options.train_every
        slots = shuffled_slots(self.epoch_units, context.micro, context.seed, every)
        keys = slots_of_step(slots, self.steps_per_epoch, context.slots, shard, position)
        return self._load(self._train, keys)

    def eval_batches(self, split: str, shard: Shard) -> Iterator[Batch]:
        if split not in self.splits:
            raise ValueError(f"ImageNet: split must be one of {self.splits}, not {split!r}")
        keys = map(list, eval_slots(len(self._val.index), self.context.eval_batch, shard))
        return self._load(self._val, keys)

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

    @cached_property
    def _train(self) -> ImageBatches:
        return self._dataset("train")

    @cached_property
    def _val(self) -> ImageBatches:
        return self._dataset("val")

    def _dataset(self, split: str) -> ImageBatches:
        check_folders(self.root, self.model_options.classes)
        index = ImageIndex(self.root, split)
        wanted = self.data_options.train_images
        if split == "train" and wanted is not None and len(index) != wanted:
            raise DataProblem(
                f"{self.root / split}: {len(index):,} images, but there must be {wanted:,} "
                "(data.train_images); is the set complete?"
            )
        options = self.data_options
        return ImageBatches(index, options.image_size, self.context.seed, options.smallest_crop)


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
