"""Programs under the hollow CUDA, as child processes of a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.hollow_cuda.build import build, missing

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class HollowCuda:
    """Starts Python modules on GPUs that are not there."""

    folder: Path

    def environment(
        self, gpus: int = 1, capability: int = 80, gigabytes: float = 80.0, driver: int = 13000
    ) -> dict[str, str]:
        paths = [str(self.folder), os.environ.get("LD_LIBRARY_PATH", "")]
        return {
            **{k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"},
            "LD_PRELOAD": str(self.folder / "libhollow.so"),
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, paths)),
            "TRITON_LIBCUDA_PATH": str(self.folder),
            "TRITON_CACHE_DIR": str(self.folder / "triton"),
            "HOLLOW_GPUS": str(gpus),
            "HOLLOW_CC": str(capability),
            "HOLLOW_GB": str(gigabytes),
            "HOLLOW_DRIVER": str(driver),
            "OMP_NUM_THREADS": "1",
        }

    def run(
        self, module: str, *arguments: str, more: Mapping[str, str] | None = None, **machine: Any
    ) -> subprocess.CompletedProcess[str]:
        """`python -m module arguments` on a machine of `environment`'s arguments."""
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env=self.environment(**machine) | dict(more or {}),
            capture_output=True,
            text=True,
            check=False,
        )

    def ask(self, module: str, *arguments: str, **machine: Any) -> Any:
        """What a probe answers: the last line that it prints, as JSON."""
        done = self.run(module, *arguments, **machine)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def hollow_cuda() -> HollowCuda:
    if reason := missing():
        pytest.skip(reason)
    return HollowCuda(build())
