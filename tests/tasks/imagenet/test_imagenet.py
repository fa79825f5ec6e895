"""ImageNet's model, data and counts."""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms import RandomResizedCrop  # type: ignore[import-untyped]

from tasks.base import Batch, Context, DataProblem, Shard
from tasks.catalog import task_class
from tasks.imagenet import data
from tasks.imagenet.data import ImageIndex, ImageNetDataOptions, MapDataset
from tasks.imagenet.model import Bottleneck, ResNet, ResNetOptions, SamePool
from tasks.imagenet.task import ImageNet, normalise, places
from tasks.seeding import torch_generator
from tasks.streams import Item
from tests.tasks.contract import assert_task_contract, bytes_of_rows, take

TINY = ResNetOptions(stages=[1, 1], width=4, classes=10, stem="small")


def make(root: Path, model: ResNetOptions = TINY, folder: str = "few", **context: int) -> ImageNet:
    options = ImageNetDataOptions(folder, folder, 16, make="digits" if folder == "digits" else None)
    fields = {"seed": 0, "micro": 8, "slots": 4, "eval_batch": 64, "data_workers": 0} | context
    return ImageNet(model, options, Context(data_root=root, **fields))


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`digits`, and `few`: all its validation images and 15 training images of each class."""
    root = tmp_path_factory.mktemp("data")
    make(root, folder="digits").check_data()
    shutil.copytree(root / "digits" / "val", root / "few" / "val")
    for name in data.class_names(root / "digits" / "train"):
        (root / "few" / "train" / name).mkdir(parents=True)
        for path in sorted((root / "digits" / "train" / name).iterdir())[:15]:
            shutil.copy(path, root / "few" / "train" / name)
    return root


def test_resnet50_has_the_papers_size():
    with torch.device("meta"):
        model = ResNet(ResNetOptions())
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
    parameters = list(model.parameters())
    assert sum(p.numel() for p in parameters) == 25_549_352
    assert len(parameters) == 153
    strided = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)]
    assert Counter(m.kernel_size for m in strided) == {(7, 7): 1, (3, 3): 3, (1, 1): 3}
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {(m.momentum, m.eps) for m in norms} == {(0.003, 1e-5)}


def test_small_and_basic_variants():
    model = ResNet(ResNetOptions([2, 1], width=8, classes=7, bottleneck=False, stem="small"))
    assert model(torch.zeros(2, 3, 9, 12)).shape == (2, 7)
    assert model.blocks(model.stem(torch.zeros(1, 3, 8, 8))).shape == (1, 16, 4, 4)


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match=r"stem must be one of .* not 'large'"):
        ResNet(ResNetOptions(stem="large"))
    with pytest.raises(ValueError, match=r"every stage needs a block, not \[3, 0\]"):
        ResNet(ResNetOptions(stages=[3, 0]))
    with pytest.raises(ValueError, match="width and classes must be at least 1, not 0"):
        ResNet(ResNetOptions(width=0))


@pytest.mark.parametrize("height", [1, 2, 3, 7, 8, 112])
@pytest.mark.parametrize("width", [4, 5])
def test_pooling_is_tensorflows_same(height: int, width: int):
    """Outputs ceil(n / 2); of the padding the smaller half stands before the image."""

    def padding(n: int) -> tuple[int, int]:
        total = max((math.ceil(n / 2) - 1) * 2 + 3 - n, 0)
        return total // 2, total - total // 2

    x = torch.randn(2, 3, height, width) - 5  # a padding of 0 would show
    expected = F.max_pool2d(F.pad(x, padding(width) + padding(height), value=-math.inf), 3, 2)
    assert torch.equal(SamePool()(x), expected)
    assert padding(112) == (0, 1)


def test_a_block_projects_after_its_first_relu():
    block = Bottleneck(6, 3, 2, project=True).double().eval()
    x = torch.randn(2, 6, 5, 5, dtype=torch.float64)
    p, a, b, c = (m.weight for m in block.modules() if isinstance(m, nn.Conv2d))
    norm = math.sqrt(1 + 1e-5)  # of fresh statistics: mean 0, variance 1
    active = F.relu(x / norm)
    y = F.relu(F.conv2d(active, a) / norm)
    y = F.relu(F.conv2d(F.pad(y, (1, 1, 1, 1)), b, stride=2) / norm)
    expected = F.conv2d(y, c) + F.conv2d(active, p, stride=2)
    torch.testing.assert_close(block(x), expected)


def test_weights_start_from_lecuns_truncated_normal():
    model = ResNet(ResNetOptions(stages=[1, 1], classes=200))
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            values, std = module.weight.detach().flatten(), module.weight[0].numel() ** -0.5
            # Standard errors of a mean and of a deviation; four of them.
            assert abs(values.mean()) < 4 * std / math.sqrt(len(values))
            assert abs(values.std() / std - 1) < 4 / math.sqrt(2 * len(values))
            assert 1.9 * std < values.abs().max() * 0.8796256610 <= 2.0001 * std
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
    assert (model.head.bias == 0).all()


def test_contract(data_root: Path):
    assert task_class("imagenet") is ImageNet
    assert_task_contract(lambda **context: make(data_root, **context))


def test_a_training_stream_has_the_augmented_images_of_its_items(data_root: Path):
    task = make(data_root)
    dataset = MapDataset(ImageIndex(data_root / "few", "train"), 16, seed=0)
    everything = data.load_batches(dataset, [[Item(0, i) for i in range(150)]], 0)
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
    counts, carry = make(tmp_path).count(Fixed(logits), images_of([5, 5, 1, 0]), None)
    loss = -math.log(6 / 21 * 6 / 21 * 2 / 21 * 1 / 21)
    assert carry is None
    assert counts == {"images": 4, "top1": 2, "top5": 3, "loss": pytest.approx(loss, rel=1e-14)}
    expected = {"top1": 50.0, "top5": 75.0, "loss": pytest.approx(loss / 4)}
    assert make(tmp_path).summarize("val", counts) == expected
    total, weight, _ = make(tmp_path).loss(Fixed(logits), images_of([5, 5, 1, 0]), None)
    assert [total.item(), float(weight)] == pytest.approx([loss, 4])
    counts, _ = make(tmp_path).count(Fixed([[1.0, 2.0, 3.0]]), images_of([0]), None)
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
        total, _, _ = make(tmp_path).loss(model, images_of([0]), None)
    assert model.asked is not None
    assert model.asked.dtype == (torch.float32 if autocast else dtype)
    assert total.dtype == torch.promote_types(dtype, torch.float32)


def test_normalisation():
    pixels = torch.tensor([0, 255], dtype=torch.uint8).expand(1, 3, 1, 2)
    expected = [[(v - mean) / 127.5 for v in (0, 255)] for mean in (123.68, 116.78, 103.94)]
    found = normalise(pixels, torch.float64)[0, :, 0]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_unknown_names(tmp_path: Path):
    task = make(tmp_path, folder="digits")
    with pytest.raises(ValueError, match=r"split must be one of .* not 'test'"):
        task.eval_batches("test", Shard())
    task.data_options.make = "cats"
    with pytest.raises(DataProblem, match=r"data.make: must be null or one of \['digits'\]"):
        task.check_data()


@pytest.mark.parametrize("size", [(375, 500), (64, 64), (3, 400), (400, 3), (1, 1)])
def test_crops_are_torchvisions(size: tuple[int, int]):
    """Also those that no attempt fits, where the middle is taken."""
    for seed in range(150):
        torch.manual_seed(seed)
        expected = RandomResizedCrop.get_params(torch.empty(3, *size), [0.05, 1], [3 / 4, 4 / 3])
        assert data.crop_box(*size, torch.Generator().manual_seed(seed)) == tuple(expected)


def test_augmentation_depends_on_seed_epoch_and_index_only(data_root: Path):
    index = ImageIndex(data_root / "few", "train")

    def image(key: Item | int, seed: int = 0) -> Tensor:
        return torch.as_tensor(MapDataset(index, 16, seed)[key]["image"])

    assert torch.equal(image(Item(0, 3)), image(Item(0, 3)))
    for other in (image(Item(1, 3)), image(Item(0, 4)), image(Item(0, 3), seed=1), image(3)):
        assert not torch.equal(image(Item(0, 3)), other)


def test_half_of_the_images_are_mirrored():
    ramp = torch.arange(200, dtype=torch.uint8).expand(3, 200, 200)
    crops = [data.augment(ramp, 8, torch_generator(0, "augment", 0, i))[0, 0] for i in range(200)]
    mirrored = sum(bool(row[0] > row[-1]) for row in crops)
    assert abs(mirrored - 100) < 4 * math.sqrt(50)  # four standard deviations


def test_evaluation_takes_the_middle():
    """(256, 512) at 224 is not resized; (128, 256) is doubled first."""
    image = torch.randint(0, 256, (3, 256, 512), dtype=torch.uint8)
    assert torch.equal(data.central(image, 224), image[:, 16:240, 144:368])
    flat = torch.full((3, 128, 256), 77, dtype=torch.uint8)
    assert torch.equal(data.central(flat, 224), flat.new_full((3, 224, 224), 77))
    assert data.central(image, 16).shape == (3, 16, 16)


@pytest.mark.parametrize(("mode", "suffix"), [("L", "JPEG"), ("CMYK", "JPEG"), ("LA", "PNG")])
def test_other_colours_become_rgb(tmp_path: Path, mode: str, suffix: str):
    file = tmp_path / f"a.{suffix}"
    Image.new("RGB", (9, 8), (100, 100, 100)).convert(mode).save(file)
    image = data.read_image(file)
    assert image.dtype == torch.uint8
    assert image.shape == (3, 8, 9)
    assert (image.int() - 100).abs().max() <= 1  # JPEG rounds


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_is_named(tmp_path: Path, data_root: Path, workers: int):
    shutil.copytree(data_root / "few", tmp_path / "few")
    broken = sorted((tmp_path / "few" / "val" / "0").iterdir())[1]
    broken.write_bytes(broken.read_bytes()[:300])
    task = make(tmp_path, data_workers=workers)
    with pytest.raises(DataProblem) as found:
        list(task.eval_batches("val", Shard()))
    assert str(found.value).startswith(f"{broken}: cannot be read as an image: ")
    assert "\n" not in str(found.value)
    assert not multiprocessing.active_children()


def test_missing_folders_are_explained(tmp_path: Path):
    root, task = tmp_path / "imagenet", make(tmp_path, folder="imagenet")
    with pytest.raises(DataProblem, match=f"{root}/train: no such folder") as found:
        task.check_data()
    assert f"{root}/val/<class>/*.JPEG" in str(found.value)
    assert "image-net.org after registration" in str(found.value)
    (root / "train").mkdir(parents=True)
    with pytest.raises(DataProblem, match="train: no class folders"):
        task.check_data()
    for i in range(10):
        (root / "train" / f"n{i}").mkdir()
    with pytest.raises(DataProblem, match="val: no such folder"):
        task.check_data()
    for i in range(1, 11):
        (root / "val" / f"n{i}").mkdir(parents=True)
    with pytest.raises(DataProblem, match="class 'n0' is in train/ but not in val/"):
        task.check_data()


def test_the_models_classes_are_the_folders(data_root: Path, tmp_path: Path):
    with pytest.raises(DataProblem, match=r"10 class folders, but the model has 1,000 classes"):
        make(data_root, ResNetOptions()).check_data()
    shutil.copytree(data_root / "few", tmp_path / "few")
    shutil.rmtree(tmp_path / "few" / "val" / "3")
    (tmp_path / "few" / "val" / "3").mkdir()
    with pytest.raises(DataProblem, match="val/3: no images"):
        make(tmp_path).eval_batches("val", Shard())


def test_labels_and_files_are_sorted(data_root: Path):
    index = ImageIndex(data_root / "digits", "val")
    paths = [index.path(i) for i in range(len(index))]
    assert paths == sorted((data_root / "digits" / "val").glob("*/*.JPEG"))
    assert index.classes == list("0123456789")
    assert [p.parent.name for p in paths] == [str(label) for label in index.labels]


def test_digits_are_made_once(data_root: Path):
    task = make(data_root, folder="digits")
    file = next((task.root / "val" / "7").iterdir())
    with Image.open(file) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (32, 32))
    before = file.stat()
    task.check_data()
    assert file.stat() == before
    assert task.epoch_units == 1498
    assert len(list(task.eval_batches("val", Shard()))) == math.ceil(299 / 64)
    assert sorted(p.name for p in data_root.iterdir()) == ["digits", "few"]


def test_digits_that_are_not_whole_are_left_alone(data_root: Path, tmp_path: Path):
    shutil.copytree(data_root / "few", tmp_path / "digits")
    with pytest.raises(DataProblem, match=r"not the whole of the digits, \{'train': 150"):
        make(tmp_path, folder="digits").check_data()


def test_an_endless_stream_is_read_a_few_batches_ahead(data_root: Path):
    drawn = 0

    def endless() -> Iterator[list[int]]:
        nonlocal drawn
        while True:
            drawn += 1
            yield [drawn % 100]

    stream = data.load_batches(
        MapDataset(ImageIndex(data_root / "few", "val"), 16, 0), endless(), 2
    )
    next(stream)
    assert drawn <= 6
    stream.close()
    assert not multiprocessing.active_children()


def test_loading_ends_by_the_parents_signal_only(data_root: Path):
    """One to the whole group leaves it; the parent's must not: torch sends it, then waits."""
    stream = make(data_root, data_workers=2).train_stream(Shard(), 0)
    for _ in range(4):
        next(stream)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for name in ("-TERM", "-INT"):
        subprocess.run(["kill", name, *(str(w.pid) for w in workers)], check=True)
    time.sleep(0.2)
    for _ in range(12):
        next(stream)
    for worker in workers:
        worker.terminate()
        worker.join(timeout=30)
        assert worker.exitcode == 0


def test_a_program_that_leaves_a_stream_open_ends(data_root: Path):
    def leave_open() -> None:
        stream = make(data_root, data_workers=2).train_stream(Shard(), 0)
        next(stream)
        cycle: list[object] = [stream]
        cycle.append(cycle)  # keeps it until the process is gone
        raise SystemExit(3)

    program = multiprocessing.get_context("fork").Process(target=leave_open)
    program.start()
    program.join(timeout=60)
    assert program.exitcode == 3


def test_real_images():
    """20 classes of Tiny ImageNet; 7 of the validation files are grey-scale."""
    root = Path(os.environ.get("DATA_ROOT", "/nowhere"))
    if not (root / "tiny-imagenet-20").is_dir():
        pytest.skip("needs $DATA_ROOT/tiny-imagenet-20/{train,val}/<class>/*.JPEG")
    model = ResNetOptions(stages=[1], width=4, classes=20, stem="imagenet")
    context = Context(0, micro=64, slots=2, eval_batch=250, data_workers=0, data_root=root)
    task = ImageNet(model, ImageNetDataOptions(folder="tiny-imagenet-20", image_size=56), context)
    task.check_data()
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
