"""What all data sets that the suite makes have in common: whole or not at all, once."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tasks.base import DataProblem
from tasks.making import MAKE_AGAIN, check_sha256, make_once

SUMS = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("a", "b")}
FORK = multiprocessing.get_context("fork")


def make(temporary: Path, between: Callable[[], object] = lambda: None) -> Path:
    made = temporary / "made"
    made.mkdir()
    (made / "a").write_text("a")
    between()
    (made / "b").write_text("b")
    return made


def make_letters(root: Path, maker: Callable[[Path], Path] = make) -> bool:
    return make_once(root, "letters", partial(check_sha256, sums=SUMS), maker, lambda _: None)


def left(root: Path) -> list[str]:
    return sorted(path.name for path in root.parent.iterdir() if not path.name.endswith(".lock"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data" / "letters"


def test_a_set_is_made_once(root: Path):
    assert make_letters(root)
    assert not make_letters(root, lambda _: pytest.fail("made again"))
    assert left(root) == ["letters"]


def test_a_damaged_set_is_named_and_kept(root: Path):
    make_letters(root)
    (root / "b").write_text("other")
    with pytest.raises(
        DataProblem, match=f"^{root}/b: its SHA-256 is .*{SUMS['b']}; {re.escape(MAKE_AGAIN)}"
    ):
        make_letters(root)
    (root / "b").unlink()
    with pytest.raises(DataProblem, match=f"^{root}/b: missing, so {root} is not whole; move"):
        make_letters(root)
    assert left(root) == ["letters"]


def test_a_place_that_cannot_be_written_is_named(root: Path):
    root.parent.write_text("")
    with pytest.raises(DataProblem, match=f"^{root}: letters cannot be written there: "):
        make_letters(root)


def test_an_interrupted_maker_leaves_nothing(root: Path):
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_letters(root, partial(make, between=interrupt))
    assert left(root) == []


def test_after_a_kill_a_second_call_succeeds(root: Path):
    die = partial(make, between=lambda: os.kill(os.getpid(), signal.SIGKILL))
    first = FORK.Process(target=make_letters, args=(root, die))
    first.start()
    first.join()
    assert first.exitcode == -signal.SIGKILL
    assert left(root) == [".letters.making"]
    assert make_letters(root)
    assert left(root) == ["letters"]


def test_one_process_makes_it_and_the_others_wait(root: Path, tmp_path: Path):
    calls = tmp_path / "calls"

    def record() -> None:
        with calls.open("a") as file:
            file.write("call\n")

    counted = partial(make, between=record)
    processes = [FORK.Process(target=make_letters, args=(root, counted)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert calls.read_text() == "call\n"
