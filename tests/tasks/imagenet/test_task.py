"""ImageNet's losses and counts, and its streams."""

from __future__ import annotations

import math
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tasks.base import Batch, Context, DataProblem, Shard
from tasks.catalog import task_class
from tasks.imagenet.data import ImageBatches, ImageNetDataOptions
from tasks.imagenet.index import ImageIndex
from tasks.imagenet.model import ResNetOptions
from tasks.imagenet.task import ImageNet, normalise, places
from tasks.loading import Unreadable, load_batches
from tasks.streams import Item
from tests.tasks.contract import assert_task_contract, bytes_of_rows, take
from tests.tasks.imagenet.few import make_task


def test_contract(data_root: Path):
    assert task_class("imagenet") is ImageNet
    assert_task_contract(lambda **context: make_task(data_root, **context))


def test_a_training_stream_has_the_augmented_images_of_its_items(data_root: Path):
    task = make_task(data_root)
    dataset = ImageBatches(ImageIndex(data_root / "few", "train"), 16, seed=0)
    everything = load_batches(
        dataset, [[Item(0, i) for i in range(150)]], 0, Unreadable(0, 150, "")
    )
    known = {row for batch in everything for row in bytes_of_rows(batch)}
    assert len(known) == task.epoch_units == 150
    batches = take(task.train_stream(Shard(), 0), task.steps_per_epoch * 4)
    seen = [row for batch in batches for row in bytes_of_rows(batch)]
    assert len(seen) == len(set(seen)) == 128
    assert set(seen) < known
    for batch in (batches[0], task.example_batch()):
        assert batch.units == len(batch.tensors["label"]) == 8
        assert batch.tensors["image"].shape == (8, 3, 16, 16)
        assert batch.tensors["image"].dtype == torch.uint8


def test_only_every_third_image(data_root: Path):
    task = make_task(data_root)
    task.data_options.train_every = 3
    assert task.epoch_units == 50
    dataset = ImageBatches(ImageIndex(data_root / "few", "train"), 16, seed=0)
    items = [Item(0, i) for i in range(0, 150, 3)]
    known = load_batches(dataset, [items], 0, Unreadable(0, 150, ""))
    batches = take(task.train_stream(Shard(), 0), task.steps_per_epoch * 4)
    seen = {row for batch in batches for row in bytes_of_rows(batch)}
    assert seen <= {row for batch in known for row in bytes_of_rows(batch)}
    assert len(seen) == 32
    task.data_options.train_every = 0
    with pytest.raises(DataProblem, match="train_every: must be at least 1, not 0"):
        task.prepare_data()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("image_size", 0, "image_size: must be at least 1, not 0"),
        ("max_unreadable", 2.0, "max_unreadable: must be between 0 and 1, a share of the files"),
        ("max_unreadable", -0.1, "max_unreadable: must be between 0 and 1"),
    ],
)
def test_options_out_of_range_are_refused_before_anything_starts(
    data_root: Path, option: str, value: float, message: str
):
    task = make_task(data_root)
    setattr(task.data_options, option, value)
    with pytest.raises(DataProblem, match=message):
        task.prepare_data()


def test_validation_on_images_that_training_leaves_out(data_root: Path):
    """val/ is then the test split, which nothing but the final evaluation reads."""
    task = make_task(data_root, data={"train_every": 3, "validate_every": 4})
    task.prepare_data()
    train, val = (ImageIndex(data_root / "few", split) for split in ("train", "val"))
    left_out = [*range(0, 150, 4)]
    found = [batch.tensors["label"] for batch in task.eval_batches("val", Shard())]
    assert torch.cat(found).tolist() == train.labels[left_out].tolist()
    assert (task.splits, task.final_splits) == (("val",), ("test",))
    assert task.image_path("val", 1) == Path(train.path(left_out[1])).relative_to(task.root)
    assert task.image_path("test", 1) == Path(val.path(1)).relative_to(task.root)


def test_images_that_are_validated_on_are_never_trained_on(data_root: Path):
    task = make_task(data_root, data={"train_every": 2, "validate_every": 4})
    assert task.epoch_units == 112 // 2
    assert task._trained_on(12).tolist() == [1, 3, 6, 9]  # of 1, 2, 3, 5, 6, 7, 9, 10, 11
    task.data_options.validate_every = 1
    with pytest.raises(DataProblem, match="validate_every: must be at least 2 or null, not 1"):
        task.prepare_data()


class Fixed(nn.Module):
    """Answers with given logits, and remembers what it was asked."""

    def __init__(self, logits: list[list[float]], dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits, dtype=dtype))
        self.asked: Tensor | None = None

    def forward(self, images: Tensor) -> Tensor:
        self.asked = images
        return self.logits[: len(images)]


def images_of(labels: list[int]) -> Batch:
    images = torch.zeros(len(labels), 3, 2, 2, dtype=torch.uint8)
    return Batch({"image": images, "label": torch.tensor(labels)}, len(labels))


def test_counts_by_hand(tmp_path: Path):
    """Six classes with probabilities 1/21 … 6/21, as logits."""
    logits = [[math.log(c) for c in (1, 2, 3, 4, 5, 6)]] * 4
    counts, carry = make_task(tmp_path).count(Fixed(logits), images_of([5, 5, 1, 0]), None)
    loss = -math.log(6 / 21 * 6 / 21 * 2 / 21 * 1 / 21)
    assert carry is None
    assert counts == {"images": 4, "top1": 2, "top5": 3, "loss": pytest.approx(loss, rel=1e-14)} | {
        "unreadable": 0
    }
    expected = {"top1": 50.0, "top5": 75.0, "loss": pytest.approx(loss / 4)}
    assert make_task(tmp_path).summarize("val", counts) == expected
    total, weight, _ = make_task(tmp_path).loss(Fixed(logits), images_of([5, 5, 1, 0]), None)
    assert [total.item(), float(weight)] == pytest.approx([loss, 4])
    counts, _ = make_task(tmp_path).count(Fixed([[1.0, 2.0, 3.0]]), images_of([0]), None)
    assert (counts["top1"], counts["top5"]) == (0, 1)  # of fewer than five classes


def test_equal_logits_and_nan_do_not_count_as_right():
    labels = torch.arange(7)
    assert places(torch.zeros(7, 7), labels).tolist() == list(range(7))
    assert places(torch.full((7, 7), math.nan), labels).tolist() == [6] * 7
    logits = torch.tensor([[1.0, 3.0, math.nan, 2.0]])
    assert places(logits, torch.tensor([1])).item() == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_types_of_images_and_losses(tmp_path: Path, dtype: torch.dtype, autocast: bool):
    """Images come in the model's type, under autocast in float32; losses are never shorter."""
    model = Fixed([[0.0, 1.0]], dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        total, _, _ = make_task(tmp_path).loss(model, images_of([0]), None)
    assert model.asked is not None
    assert model.asked.dtype == (torch.float32 if autocast else dtype)
    assert total.dtype == torch.promote_types(dtype, torch.float32)


def test_normalisation():
    pixels = torch.tensor([0, 255], dtype=torch.uint8).expand(1, 3, 1, 2)
    expected = [[(v - mean) / 127.5 for v in (0, 255)] for mean in (123.68, 116.78, 103.94)]
    found = normalise(pixels, torch.float64)[0, :, 0]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_unknown_names(tmp_path: Path):
    task = make_task(tmp_path, folder="digits")
    with pytest.raises(ValueError, match=r"split must be one of .* not 'test'"):
        task.eval_batches("test", Shard())
    task.data_options.make = "cats"
    with pytest.raises(DataProblem, match=r"data.make: must be null or one of \['digits'"):
        task.prepare_data()


def test_real_images():
    """20 classes of Tiny ImageNet; 7 of the validation files are grey-scale."""
    root = Path(os.environ.get("DATA_ROOT", "/nowhere"))
    if not (root / "tiny-imagenet-20").is_dir():
        pytest.skip("needs $DATA_ROOT/tiny-imagenet-20/{train,val}/<class>/*.JPEG")
    model = ResNetOptions(stages=[1], width=4, classes=20, stem="imagenet")
    context = Context(0, micro=64, micro_batches=2, eval_batch=250, data_workers=0, data_root=root)
    task = ImageNet(model, ImageNetDataOptions(folder="tiny-imagenet-20", image_size=56), context)
    task.prepare_data()
    assert task.epoch_units == 10_000
    for batch in take(task.train_stream(Shard(), task.steps_per_epoch - 1), 3):
        assert batch.tensors["image"].shape == (64, 3, 56, 56)
        total, weight, _ = task.loss(task.build_model(), batch, None)
        assert total.item() / weight == pytest.approx(math.log(20), rel=0.5)
    labels, grey = Counter[int](), 0
    for batch in task.eval_batches("val", Shard()):
        labels.update(batch.tensors["label"].tolist())
        red, green, blue = batch.tensors["image"].unbind(1)
        grey += int(((red == green) & (green == blue)).flatten(1).all(1).sum())
    assert labels == dict.fromkeys(range(20), 50)
    assert grey >= 7
