"""A real Slurm for the tests of this folder, which run only where `-m cluster` asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.slurm import Unavailable, install, running_slurm


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cluster: needs Slurm, run by make test-cluster")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "cluster" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("cluster")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """In the environment of this process, so that all that it calls finds it."""
    folder: Path = tmp_path_factory.mktemp("slurm") / "run"
    with pytest.MonkeyPatch.context() as patch:
        try:
            install()
            with running_slurm(folder) as environment:
                patch.setenv("SLURM_CONF", environment["SLURM_CONF"])
                yield
        except Unavailable as reason:
            pytest.skip(f"no Slurm here: {reason}")
