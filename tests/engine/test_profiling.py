"""Traces of some steps, on a CPU too."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from engine.config import ConfigProblem
from engine.distributed import Group
from engine.profiling import parse_range
from engine.rows import read_rows
from tests.engine.toy import fit, toy_config

CPU = Group(0, 1, torch.device("cpu"))


@pytest.mark.filterwarnings("error")
def test_the_steps_of_a_range_are_traced_into_the_runs_folder(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fit(toy_config(tmp_path, hardware__profile="1:3"), CPU, tmp_path)
    (trace,) = (tmp_path / "profile").iterdir()
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert {e["name"] for e in events if e.get("name", "").startswith("step ")} == {
        "step 1",
        "step 2",
    }
    assert "ERROR" not in capfd.readouterr().err


def test_a_run_that_ends_inside_the_range_leaves_its_trace(tmp_path: Path) -> None:
    fit(toy_config(tmp_path, hardware__profile="2:100000"), CPU, tmp_path)
    assert len(list((tmp_path / "profile").iterdir())) == 1


def test_a_range_that_is_none_is_refused(tmp_path: Path) -> None:
    assert parse_range("3:4") == (3, 4)
    for text in ("3", "4:3", "a:b", "3:3", "-1:2"):
        with pytest.raises(ConfigProblem, match=r"hardware\.profile"):
            toy_config(tmp_path, hardware__profile=text)


def test_waiting_for_data_is_logged_as_a_share(tmp_path: Path) -> None:
    fit(toy_config(tmp_path), CPU, tmp_path)
    shares = [
        r["speed/data_wait"] for r in read_rows(tmp_path / "metrics.jsonl") if "train/lr" in r
    ]
    assert shares
    assert all(0 <= share <= 1 for share in shares)
    assert "gpu/mfu" not in read_rows(tmp_path / "metrics.jsonl")[0]
