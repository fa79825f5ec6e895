"""Whenever a process is killed, what it had saved is there, and whole."""

from __future__ import annotations

import itertools
import os
import random
import select
import shutil
import signal
import struct
from pathlib import Path

import pytest
import torch

from tests.engine.stores import Lines, best, latest, names, state_at, store_in


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """What is synchronised matters to a power cut, not to a kill."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def save_until_killed(folder, first, tell):
    """Each step once or twice, every third as the best; tells of those that are done."""
    torch.set_num_threads(1)
    os.write(tell, struct.pack("q", first - 1))
    for step in range(first, 10**6):
        for _ in range(1 + step % 2):
            store_in(folder).save(step, state_at(step, 20_000), best=step % 3 == 0)
        os.write(tell, struct.pack("q", step))


def killed_after(seconds, folder, first):
    """The last step that a process told of, which saved for so long and began with `first`.

    It is a fork, because importing torch takes seconds, and ends without pytest's endings.
    """
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            save_until_killed(folder, first, tell)
        finally:
            os._exit(1)
    os.close(tell)
    begun = os.read(told, 8)
    select.select([], [], [], seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    done = begun + os.read(told, 1 << 16)
    os.close(told)
    assert os.WIFSIGNALED(status)
    return struct.unpack("q", done[-8:])[0]


def test_killed_at_random_moments(folder):
    chance, reached = random.Random(0), 0
    seen: set[str] = set()
    for _ in range(40):
        log = Lines()
        told = killed_after(chance.uniform(0.0, 0.03), folder, reached + 1)
        seen.update(Path(name).suffix for name in (names(folder) if folder.exists() else []))
        reached = latest(folder, log) or 0
        assert reached in (told, told + 1)
        assert (best(folder) or 0) >= reached // 3 * 3
        assert not [line for line in log if "interrupted" not in line], "a kill is no damage"
    assert reached > 0
    assert ".tmp" in seen, "no kill came during a save"


def moments(monkeypatch, folder, save, copies, first=0, every=1):
    """Copies of the folder before each change of the disk: all that a kill can leave."""
    made: list[Path] = []
    calls = itertools.count()

    def recording(function):
        def recorded(*args, **kwargs):
            if next(calls) % every == first:
                made.append(copies / f"{len(made)}")
                shutil.copytree(folder, made[-1])
            return function(*args, **kwargs)

        return recorded

    with monkeypatch.context() as patched:
        for name in ("fsync", "replace", "unlink", "link"):
            patched.setattr(os, name, recording(getattr(os, name)))
        save()
    return made


@pytest.mark.parametrize("is_best", [False, True], ids=["", "best"])
@pytest.mark.parametrize(
    ("before", "step"),
    [([], 1), ([1], 1), ([1], 2), ([1, 2], 2), ([1, 2], 3)],
    ids=["first", "the_only_one_again", "second", "the_last_again", "third"],
)
def test_killed_at_every_moment(folder, tmp_path, monkeypatch, before, step, is_best):
    """And killed again while it saves what the first kill prevented."""

    def save_in(here):
        return lambda: store_in(here, keep=1).save(step, state_at(step), best=is_best)

    def check(here):
        log = Lines()
        assert latest(here, log) in (before[-1] if before else None, step)
        assert best(here) in {before[0] if before else None, *([step] if is_best else [])}
        assert not [line for line in log if "interrupted" not in line]

    for done in before:
        store_in(folder, keep=1).save(done, state_at(done), best=done == 1)
    killed = moments(monkeypatch, folder, save_in(folder), tmp_path / "once")
    assert len(killed) > 5
    for count, here in enumerate(killed):
        check(here)
        copies = tmp_path / f"twice-{count}"
        again = moments(monkeypatch, here, save_in(here), copies, first=count % 5, every=5)
        for there in again:
            check(there)
        assert latest(here) == step
        store_in(here, keep=1).save(step + 1, state_at(step + 1))
        assert not [name for name in names(here) if name.endswith(".tmp")]
