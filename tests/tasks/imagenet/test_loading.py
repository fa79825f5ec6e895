"""Processes that load, and files that can not be read."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.distributed import is_lost_contact
from tasks.base import DataProblem, Shard
from tasks.imagenet.data import ImageBatches
from tasks.imagenet.index import ImageIndex
from tasks.loading import Loaded, Unreadable, load_batches
from tests.tasks.imagenet.few import make_task


@pytest.mark.parametrize("workers", [0, 1])
def test_too_many_unreadable_images_end_the_run(tmp_path: Path, data_root: Path, workers: int):
    shutil.copytree(data_root / "few", tmp_path / "few")
    broken = sorted((tmp_path / "few" / "val" / "0").iterdir())[1]
    broken.write_bytes(broken.read_bytes()[:300])
    task = make_task(tmp_path, data_workers=workers)
    with pytest.raises(DataProblem) as found:
        list(task.eval_batches("val", Shard()))
    assert str(found.value).startswith(f"{broken}: cannot be read: ")
    assert "1 unreadable of 299 files, and data.max_unreadable allows 0" in str(found.value)
    assert "\n" not in str(found.value)
    assert not multiprocessing.active_children()


def test_a_few_unreadable_images_are_named_and_left_out(tmp_path, data_root, capsys):
    shutil.copytree(data_root / "few", tmp_path / "few")
    files = sorted((tmp_path / "few" / "val" / "0").iterdir())
    files[1].write_bytes(b"no image")
    files[2].write_bytes(files[2].read_bytes()[:300])
    task = make_task(tmp_path)
    task.data_options.max_unreadable = 0.01
    model = task.build_model()
    counts: Counter[str] = Counter()
    for batch in task.eval_batches("val", Shard()):
        counts.update(task.count(model, batch, None)[0])
    assert (counts["images"], counts["unreadable"]) == (297, 2)
    whole = task.summarize("val", counts | {"top1": 299})
    assert whole["top1"] == 100.0  # of all 299: what can't be read was not recognised
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == [str(files[1]), str(files[2])]
    assert "2 of at most 2" in lines[1]


def test_a_batch_without_an_unreadable_image_has_a_smaller_weight(tmp_path, data_root):
    shutil.copytree(data_root / "few", tmp_path / "few")
    min((tmp_path / "few" / "train" / "3").iterdir()).write_bytes(b"")
    task = make_task(tmp_path)
    task.data_options.max_unreadable = 0.01
    micro_batches = task.steps_per_epoch * task.context.micro_batches
    model = task.build_model()
    stream = task.train_stream(Shard(), 0)
    batches = [next(stream) for _ in range(micro_batches + micro_batches)]
    weights = [task.loss(model, batch, None).weight for batch in batches]
    assert {b.units for b in batches} == {8}
    assert set(weights) <= {7.0, 8.0}
    assert sum(w == 7.0 for w in weights) in (1, 2)  # once an epoch, if it is not left over


def test_an_endless_stream_is_read_a_few_batches_ahead(data_root: Path):
    drawn = 0

    def endless() -> Iterator[list[int]]:
        nonlocal drawn
        while True:
            drawn += 1
            yield [drawn % 100]

    stream = load_batches(
        ImageBatches(ImageIndex(data_root / "few", "val"), 16, 0),
        endless(),
        2,
        Unreadable(0, 299, ""),
    )
    next(stream)
    assert drawn <= 10
    stream.close()
    assert not multiprocessing.active_children()


def test_loading_ends_by_the_parents_signal_only(data_root: Path):
    """One to the whole group leaves it; the parent's must not: torch sends it, then waits."""
    stream = make_task(data_root, data_workers=2).train_stream(Shard(), 0)
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
        stream = make_task(data_root, data_workers=2).train_stream(Shard(), 0)
        next(stream)
        cycle: list[object] = [stream]
        cycle.append(cycle)  # keeps it until the process is gone
        raise SystemExit(3)

    program = multiprocessing.get_context("fork").Process(target=leave_open)
    program.start()
    program.join(timeout=60)
    assert program.exitcode == 3


class Random:
    """A source of batches."""

    def __getitems__(self, keys: list[int]) -> Loaded:
        return Loaded({"image": torch.rand(4, 3, 8, 8)}, len(keys), {})


def test_a_loading_process_that_dies_interrupts_nothing_but_the_next_batch():
    """Torch's handler of SIGCHLD would raise anywhere in the main thread."""
    before = signal.getsignal(signal.SIGCHLD)
    stream = load_batches(Random(), ([n] for n in range(100)), 1, Unreadable(0, 1, ""))
    next(stream)
    assert signal.getsignal(signal.SIGCHLD) == before
    stream.close()


@pytest.mark.parametrize("error", [EOFError(), ConnectionResetError("reset by peer")])
def test_a_tensor_that_a_killed_process_does_not_pass_on_is_a_lost_process(monkeypatch, error):
    def fail(_: object) -> Iterator[Loaded]:
        yield Loaded({}, 1, {})
        raise error

    monkeypatch.setattr("tasks.loading._started", fail)
    stream = load_batches(Random(), [[1], [2]], 1, Unreadable(0, 1, ""))
    next(stream)
    with pytest.raises(RuntimeError) as caught:
        next(stream)
    assert is_lost_contact(caught.value)
