"""Checkpoints under damage and on full disks: a run never starts anew in silence."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
from pathlib import Path

import pytest
import torch

from engine import checkpoint
from engine.checkpoint import CheckpointError
from engine.checkpoint_files import bytes_needed
from tests.engine.stores import (
    Lines,
    best,
    flip,
    latest,
    names,
    pairs,
    sign,
    state_at,
    store_in,
)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """Seconds that a save would have waited."""
    waited: list[float] = []
    monkeypatch.setattr(checkpoint.time, "sleep", waited.append)
    return waited


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """What is synchronised matters to a power cut, which no test here can make."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


# Damage


def as_folder(path):
    path.unlink()
    path.mkdir()


def as_list(path):
    torch.save([1], path)
    sign(path)


def as_garbage(path):
    path.write_bytes(b"garbage" * 99)
    sign(path)


def of_another(note):
    shutil.copy(note.with_name("step-00000001.json"), note)


DAMAGE = {
    "flipped": (lambda path: flip(path, path.stat().st_size // 2), "its SHA-256 is not"),
    "truncated": (lambda path: os.truncate(path, path.stat().st_size - 1), "bytes instead of"),
    "longer": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "bytes instead of"),
    "zero_length": (lambda path: os.truncate(path, 0), "it has 0 bytes instead of"),
    "missing": (lambda path: path.unlink(), "No such file"),
    "a_folder": (as_folder, "Is a directory"),
    "garbage": (as_garbage, "refused"),
    "not_a_state": (as_list, "holds a list"),
    "later_format": (lambda path: sign(path, format=2), "format 2"),
}
DAMAGE_OF_THE_MANIFEST = {
    "flipped": (lambda note: flip(note, note.read_bytes().index(b"1")), "was changed"),
    "empty": (lambda note: os.truncate(note, 0), "unreadable"),
    "cut": (lambda note: os.truncate(note, 60), "unreadable"),
    "binary": (lambda note: note.write_bytes(b"\xff\x00"), "unreadable"),
    "a_list": (lambda note: note.write_text("[]"), "unreadable"),
    "of_nothing": (lambda note: note.write_text("{}"), "unreadable"),
    "deeply_nested": (lambda note: note.write_text("[" * 100_000), "nested too deeply"),
    "a_folder": (as_folder, "unreadable"),
    "of_another": (of_another, "is of step 1"),
}


def check_damage(folder, damage, ending, message):
    log = Lines()
    store_in(folder).save(1, state_at(1))
    damage(store_in(folder).save(2, state_at(2)).with_suffix(ending))
    assert latest(folder, log) == 1
    assert len(log) == 1
    assert f"{folder}/step-00000002.pt is not used" in log[0]
    assert message in log[0]


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_one_is_named_and_the_one_before_is_used(folder, kind):
    damage, message = DAMAGE[kind]
    check_damage(folder, damage, ".pt", message)


@pytest.mark.parametrize("kind", DAMAGE_OF_THE_MANIFEST)
def test_so_it_is_with_a_damaged_manifest(folder, kind):
    damage, message = DAMAGE_OF_THE_MANIFEST[kind]
    check_damage(folder, damage, ".json", message)


def test_every_flipped_byte_is_found(folder):
    store_in(folder).save(1, state_at(1))
    path = store_in(folder).save(2, state_at(2))
    whole, chance = path.read_bytes(), random.Random(0)
    for offset in [0, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(100))]:
        log = Lines()
        flip(path, offset, 1 << chance.randrange(8))
        assert latest(folder, log) == 1
        assert len(log) == 1
        path.write_bytes(whole)
    assert latest(folder) == 2


def test_a_flipped_byte_of_a_manifest_is_found(folder):
    store_in(folder).save(1, state_at(1))
    note = store_in(folder).save(2, state_at(2)).with_suffix(".json")
    whole = note.read_bytes()
    for offset in range(0, len(whole), 2):
        flip(note, offset)
        assert latest(folder) == 1, offset
        note.write_bytes(whole)
    assert latest(folder) == 2


def test_if_all_are_damaged_nothing_starts_from_zero(folder):
    log = Lines()
    for step in (1, 2):
        os.truncate(store_in(folder).save(step, state_at(step)), 5)
    with pytest.raises(CheckpointError) as caught:
        latest(folder, log)
    message = str(caught.value)
    assert f"all checkpoints in {folder} are damaged" in message
    assert "step-00000001.pt: it has 5 bytes" in message
    assert "step-00000002.pt: it has 5 bytes" in message
    assert "move the folder away to start from zero" in message
    assert len(log) == 2


def test_the_best_is_the_last_resort(folder):
    store = store_in(folder)
    for step in (1, 2, 3):
        store.save(step, state_at(step), best=step == 1)
    for step in (2, 3):
        os.truncate(folder / f"step-{step:08d}.pt", 5)
    assert latest(folder) == 1
    flip(folder / "best.pt", 100)
    with pytest.raises(CheckpointError, match="all checkpoints"):
        latest(folder)
    with pytest.raises(CheckpointError, match=r"best\.pt is damaged: its SHA-256"):
        best(folder)


def test_lost_manifests_are_an_error(folder):
    store = store_in(folder)
    for step in (1, 2):
        store.save(step, state_at(step))
    for step in (1, 2):
        (folder / f"step-{step:08d}.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-00000002\.pt: its manifest is missing"):
        latest(folder)


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(folder, monkeypatch):
    def refuse(_):
        raise PermissionError(errno.EACCES, "Permission denied")

    store_in(folder).save(1, state_at(1))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", refuse)
        with pytest.raises(CheckpointError, match="cannot read the folder"):
            latest(folder)


def test_a_folder_that_is_a_file(folder):
    folder.touch()
    with pytest.raises(CheckpointError, match="cannot read the folder"):
        latest(folder)
    with pytest.raises(CheckpointError, match="cannot save"):
        store_in(folder).save(1, state_at(1))


# Disks that are full or fail


def failing(function, error, first, times):
    """A stand-in for a function that fails from a certain call on, so many times."""
    calls = 0

    def stand_in(*args, **kwargs):
        nonlocal calls
        calls += 1
        if first <= calls < first + times:
            raise OSError(error, os.strerror(error))
        return function(*args, **kwargs)

    return stand_in


def test_a_full_disk_is_seen_before_writing(folder, monkeypatch):
    store, state = store_in(folder), state_at(2, 100_000)
    store.save(1, state_at(1))
    usage = shutil.disk_usage(folder)._replace(free=12_345)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: usage)
        patched.setattr(torch, "save", lambda *_: pytest.fail("it was written"))
        with pytest.raises(CheckpointError) as caught:
            store.save(2, state)
    message = str(caught.value)
    assert "step-00000002.pt: [Errno 28] No space left on device" in message
    assert f"needed {bytes_needed(state):,} bytes, free 12,345 bytes" in message
    assert bytes_needed(state) > 400_000
    assert names(folder) == pairs(1)
    assert latest(folder) == 1


@pytest.mark.parametrize(
    ("step", "call"), [*((2, call) for call in range(1, 13)), *((3, call) for call in range(1, 11))]
)
def test_a_disk_that_is_full_at_any_moment(folder, monkeypatch, step, call):
    """Whichever call fails, for a step again or a new one: what was there is, no temporary is."""
    store, log = store_in(folder), Lines()
    for done in (1, 2):
        store.save(done, state_at(done), best=done == 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing(os.fsync, errno.ENOSPC, call, 10**6))
        with pytest.raises(CheckpointError, match=r"No space left .* needed \d.* free \d"):
            store.save(step, state_at(step), best=True)
    assert set(pairs(1, 2, "best")) <= set(names(folder)) <= set(pairs(1, 2, step, "best"))
    assert latest(folder, log) in (2, step)
    assert best(folder) in (1, step)
    assert not log


def test_a_write_that_the_kernel_refuses(folder):
    """The error is the kernel's, not what torch makes of it."""
    store_in(folder).save(1, state_at(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(CheckpointError, match="File too large; needed 4"):
            store_in(folder).save(2, state_at(2, 100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(folder) == pairs(1)


def test_a_passing_error_is_waited_for(folder, pauses, monkeypatch):
    log = Lines()
    monkeypatch.setattr(os, "replace", failing(os.replace, errno.EIO, 2, 3))
    store_in(folder, log).save(1, state_at(1))
    assert pauses == list(checkpoint.PAUSES)
    assert len(log) == 3
    assert all("step-00000001.pt: [Errno 5] Input/output error; needed" in line for line in log)
    assert names(folder) == pairs(1)
    assert latest(folder) == 1


def test_an_error_that_stays_is_raised_after_three_retries(folder, pauses, monkeypatch):
    log = Lines()
    monkeypatch.setattr(os, "replace", failing(os.replace, errno.EIO, 1, 4))
    with pytest.raises(CheckpointError, match="Input/output error"):
        store_in(folder, log).save(1, state_at(1))
    assert len(pauses) == len(log) == 3
    assert names(folder) == []


def test_an_interrupt_leaves_no_temporary(folder, monkeypatch):
    def interrupted(_, file):
        file.write(memoryview(b"some"))
        assert names(folder) == ["step-00000001.pt.tmp"]
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store_in(folder).save(1, state_at(1))
    assert names(folder) == []


def test_an_old_one_that_cannot_be_removed_is_only_a_warning(folder, monkeypatch):
    store = store_in(folder, log := Lines())
    for step in (1, 2):
        store.save(step, state_at(step))
    monkeypatch.setattr(os, "unlink", failing(os.unlink, errno.EBUSY, 1, 1))
    store.save(3, state_at(3))
    assert len(log) == 1
    assert "could not remove the old checkpoint" in log[0]


def test_everything_is_on_the_disk_before_the_manifest_names_it(folder, monkeypatch):
    done = []

    def fsync(descriptor):
        done.append("sync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)

    def rename(source, target, real=os.replace):
        done.append(f"name {Path(target).name}")
        real(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    store_in(folder).save(2, state_at(2))
    assert done == [
        f"sync {folder.parent.name}",
        "sync step-00000002.pt.tmp",
        "name step-00000002.pt",
        "sync checkpoints",
        f"sync .step-00000002.json.{os.getpid()}.tmp",
        "name step-00000002.json",
        "sync checkpoints",
    ]
