"""One run at scale=smoke of each task, made once for all tests, and commands on them."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from engine.records import read_run_file, read_status, write_run_file
from launch import worker
from launch.run_spec import make_run_spec
from launch.torchrun import PARENT
from scripts.evaluate import main

EXPERIMENTS = {
    "imagenet": "imagenet/novograd_100ep",
    "librispeech": "librispeech/novograd",
    "wmt14": "wmt14/novograd",
    "wikitext103": "wikitext103/novograd",
}
TASKS = tuple(EXPERIMENTS)


def overrides(base: Path, task: str) -> list[str]:
    """Of a quick run whose data is made once for all."""
    return [
        f"experiment={EXPERIMENTS[task]}",
        "scale=smoke",
        "hardware=cpu",
        "hardware.threads=1",
        f"paths.data={base / 'data'}",
        *(["evaluation.batch=4"] if task == "librispeech" else []),  # several of each split
    ]


def train(arguments: list[str]) -> Path:
    """A whole run in this process: what a worker does. The folder of the run."""
    spec = make_run_spec(arguments)
    spec.folder.mkdir(parents=True, exist_ok=True)
    write_run_file(spec.folder, spec.freeze())
    with restored_threads():
        worker._train(spec.folder, [])
    assert read_status(spec.folder).is_finished
    return spec.folder


@contextmanager
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """The same in all processes that run the tests."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def smoke_run(factory: pytest.TempPathFactory, task: str) -> Path:
    """The folder of the finished run of a task; nobody may change it but by new files."""
    base = shared_folder(factory) / "trained-models"
    base.mkdir(exist_ok=True)
    done = base / f"{task}.txt"
    with FileLock(base / f"{task}.lock"):
        if not done.exists():
            done.write_text(
                str(train([*overrides(base, task), f"paths.outputs={base / 'outputs'}"]))
            )
    return Path(done.read_text())


def state_of(folder: Path) -> dict[str, str]:
    """Sums of all files but evaluations, to see that nothing was touched."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith("evaluation-")
    }


def work_in_forks(command: Sequence[str], processes: int, threads: int | str) -> int:
    """`launch.evaluate`'s workers without the seconds that new interpreters take."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(processes):
        child = os.fork()
        if not child:
            status = 1
            try:
                os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(processes)}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
                os.environ[PARENT] = str(os.getppid())
                status = main(command)
            finally:
                os._exit(status)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def split_alone(run: Path, target: Path, task: str) -> tuple[str, list[str]]:
    """Copies one split of a run's data, and nothing of the training set; its name and overrides."""
    data = Path(read_run_file(run).config["paths"]["data"])
    folder = str(read_run_file(run).config["data"]["folder"])
    split = {"imagenet": "val", "librispeech": "test-clean"}.get(task, "test")
    names = {"wmt14": ["test.en", "test.de"], "wikitext103": ["wiki.test.tokens"]}
    for name in names.get(task, [split]):
        source, copy = data / folder / name, target / "elsewhere" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
    return split, [f"paths.data={target}", "data.folder=elsewhere", "data.make=null"]
