"""Runs that the tests of this folder compare with."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from tests.launch.launching import start, started
from tests.launch.trained_models import smoke_run


@pytest.fixture(autouse=True)
def _nothing_runs_on() -> Iterator[None]:
    yield
    while started:
        with started.pop() as process:
            process.kill()


@pytest.fixture(scope="session")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Made once, also where several processes run the tests."""
    return made_once(tmp_path_factory, "undisturbed")


@pytest.fixture(scope="session")
def undisturbed_pair(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The same of two processes, whose statistics of batch norm are other ones."""
    return made_once(tmp_path_factory, "undisturbed_pair", "hardware.processes=2")


def made_once(
    factory: pytest.TempPathFactory, name: str, *overrides: str
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder, output = base / name, base / f"{name}.txt"
    with FileLock(base / f"{name}.lock"):
        if not output.exists():
            process = start(folder, *overrides)
            printed = process.communicate()[0]
            assert process.returncode == 0, printed
            output.write_text(printed)
    return folder, subprocess.CompletedProcess([], 0, output.read_text())


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the finished smoke run of a task, the test's parameter."""
    return smoke_run(tmp_path_factory, request.param)
