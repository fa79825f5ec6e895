"""The matrix of faults: the page shows its record, and its verdicts can fail."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from typing import Any

import pytest
import torch

from tests.faults.attack import FAULTS, main
from tests.faults.matrix import Fault, record_of, source_of_figures, try_fault, without_places
from tests.faults.page import PAGE, read_record, render, with_figures
from tests.faults.site import Site, Skipped, Workshop, expect
from tests.faults.verdict import digest


def test_the_page_shows_the_figures_of_the_record():
    record = read_record()
    assert set(record) <= set(FAULTS)
    page = PAGE.read_text()
    assert with_figures(page, record) == page, "run: python -m tests.faults --page"


def attempt(attack, tmp_path):
    fault = Fault("a-fault", "what", "promise", attack, 1, 1, limit_s=5)
    return try_fault(fault, Workshop(tmp_path), 1, 0)


def test_problems_are_counted_and_shown(tmp_path):
    def attack(site: Site, _: int) -> None:
        with site.attempt("well"):
            expect(True, "never")
        with site.attempt("badly"):
            expect(False, "a | problem")

    outcome = attempt(attack, tmp_path)
    assert (outcome.tried, outcome.survived) == (2, 1)
    assert outcome.problems == ["badly: a | problem"]
    text = render(record_of([outcome], source_of_figures(0)))
    assert "1 of 2 attacks" in text
    assert "- `a-fault`: badly: a \\| problem" in text
    assert f"Not run yet: {', '.join(f'`{name}`' for name in FAULTS)}." in text


def test_what_cannot_be_tried_is_not_survived(tmp_path):
    def attack(site: Site, _: int) -> None:
        raise Skipped("no such device")

    outcome = attempt(attack, tmp_path)
    assert (outcome.tried, outcome.survived) == (0, 0)
    assert "not tried: no such device" in render(record_of([outcome], source_of_figures(0)))


def test_a_record_names_neither_folders_nor_the_host():
    text = f"/a/b/faults-x1/run.yaml: at '/usr/lib/x.py' on {platform.node()}, 3/4 s and/or"
    assert without_places(text) == "run.yaml: at 'x.py' on the host, 3/4 s and/or"


def test_an_orphan_is_a_problem_and_is_ended(tmp_path):
    pids = []

    def attack(site: Site, _: int) -> None:
        with site.attempt("a grandchild in a session of its own"):
            grandchild = (
                "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=1)"
            )
            site.start([sys.executable, "-c", grandchild]).wait()
            pids.extend(site.processes())
            site.expect_no_process(0.1)

    outcome = attempt(attack, tmp_path)
    assert "processes live on" in outcome.problems[0]
    assert len(pids) == 1
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            os.kill(pids[0], 0)
        except ProcessLookupError:
            return
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pids[0])], capture_output=True, text=True, check=False
        )
        if state.stdout.startswith("Z"):
            return
        time.sleep(0.1)
    pytest.fail("the orphan lives on")


def test_one_changed_bit_is_another_digest(tmp_path):
    state: dict[str, Any] = {
        "at": {"step": 3, "wall_s": 1.0},
        "model": {"w": torch.ones(4)},
        "empty": [],
    }
    torch.save(state, tmp_path / "a.pt")
    torch.save(state | {"at": {"step": 3, "wall_s": 2.0}}, tmp_path / "b.pt")
    state["model"]["w"].view(torch.int32)[2] ^= 1
    torch.save(state, tmp_path / "c.pt")
    assert digest(tmp_path / "a.pt") == digest(tmp_path / "b.pt")
    assert digest(tmp_path / "a.pt") != digest(tmp_path / "c.pt")


def test_an_unknown_fault_is_named(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["nothing"])
    assert ended.value.code == 2
    assert "unknown fault nothing" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["full-disk=often"])
    assert "full-disk=30" in capsys.readouterr().err
