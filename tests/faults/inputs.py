"""Bad and hostile input: configurations, archives, pickles, damaged data."""

from __future__ import annotations

import json
import os
import shutil
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import torch

from engine.checkpoint import Manifest
from tests.faults.bad_configs import CASES
from tests.faults.damage import newest, stopped_run, take
from tests.faults.matrix import fault
from tests.faults.site import ROOT, Site, expect

HOSTILE = (
    "tests/tasks/imagenet/test_archives_hostile.py",
    "tests/tasks/imagenet/test_archives_refused.py",
    "tests/tasks/imagenet/test_forms_hostile.py",
)


@fault(
    "bad configurations",
    "exit status 2 and one message without a traceback, before anything is started or written",
    tries=len(CASES),
    quick=8,
)
def bad_configuration(site: Site, tries: int) -> None:
    module = [sys.executable, "-m", "tests.faults.bad_configs"]
    launched = site.start([*module, str(site.folder), str(tries)])
    launched.wait(600)
    found: dict[str, list[Any]] = {}
    for line in launched.output.splitlines():
        if line.startswith('["'):
            case, *rest = json.loads(line)
            found[case] = rest
    for case in CASES[:tries]:
        with site.attempt(case):
            expect(case in found, f"no answer: {launched.last_lines()}")
            code, text, left = found[case]
            last = " | ".join((text or str(code)).strip().splitlines()[-2:])
            expect(code == 2, f"{f'exit status {code}' if code in range(256) else code}: {last}")
            expect(text.strip() and "Traceback" not in text, f"no clear message: {last}")
            expect(not left, "the folder of outputs was made")
            shutil.rmtree(site.outputs, ignore_errors=True)


@fault(
    "archives that an attacker has written (paths outside, links, bombs, claims of memory)",
    "refused in one line, nothing written outside",
    tries=100,
    quick=100,
)
def hostile_archive(site: Site, tries: int) -> None:
    report = site.folder / "report.xml"
    options = ["-q", "-n0", "-p", "no:cacheprovider", f"--junitxml={report}"]
    here = [name for name in HOSTILE if (ROOT / name).exists()]
    launched = site.start([sys.executable, "-m", "pytest", *options, *here])
    launched.wait(170)
    cases = ET.parse(report).getroot().iter("testcase")
    for case in [*cases][:tries]:
        with site.attempt(str(case.get("name"))):
            wrong = [*case.iter("failure"), *case.iter("error")]
            expect(not wrong, str(wrong[0].get("message"))[:300] if wrong else "")


class Payload:
    """A pickle that makes a file when it is loaded without care."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self._mark}",)


def poison(run: Path, mark: Path) -> Path:
    """The newest checkpoint, with a payload and the manifest that belongs to it."""
    import hashlib
    from dataclasses import replace

    path = newest(run)
    note = path.with_suffix(".json")
    state = torch.load(path, weights_only=True)
    path.unlink()
    torch.save(state | {"at": state["at"] | {"payload": Payload(mark)}}, path)
    data = path.read_bytes()
    sha256 = hashlib.sha256(data).hexdigest()
    note.write_bytes(replace(Manifest.read(note), size=len(data), sha256=sha256).encode())
    return path


@fault(
    "a checkpoint with a malicious pickle and a manifest that fits it",
    "never executed; not used, or refused with exit status 2 or 3",
    tries=4,
    quick=2,
)
def malicious_pickle(site: Site, tries: int) -> None:
    mark, python = site.folder / "executed", [sys.executable, "-m"]
    for number in range(tries):
        run = take(site, stopped_run(site))
        path = poison(run, mark)
        ways = {
            "init_from": [*site.command("seed=7", f"init_from={path}")],
            "a resumed run": site.command(),
            "evaluate": [*python, "scripts.evaluate", str(path)],
            "export": [*python, "scripts.export", str(path), "--to", str(site.folder / "export")],
        }
        name = [*ways][number % len(ways)]
        with site.attempt(name):
            launched = site.start(ways[name])
            site.expect_exit(launched, *([0, 3] if name == "a resumed run" else [2]))
            expect(not mark.exists(), "the payload was executed")
            expect("refused" in launched.output, f"no message: {launched.last_lines()}")


@fault(
    "1,498 images of which 15 are damaged (cut, zeroed, emptied, not an image)",
    "exit status 2 above data.max_unreadable; below it every damaged file is named and left out",
    tries=2,
    quick=1,
)
def damaged_files(site: Site, tries: int) -> None:
    site.reference()
    data = site.folder / "data"
    shutil.copytree(site.workshop.data, data)
    files = sorted((data / "digits" / "train").glob("*/*.JPEG"))
    damaged = site.random.sample(files, 15)
    for number, path in enumerate(damaged):
        whole = path.read_bytes()
        path.write_bytes((whole[:200], bytes(len(whole)), b"", b"GIF89a no image")[number % 4])
    for number in range(tries):
        allowed = ("0.02", "0.0001")[number % 2]
        with site.attempt(f"data.max_unreadable={allowed}"):
            shutil.rmtree(site.outputs, ignore_errors=True)
            launched = site.launch(f"paths.data={data}", f"data.max_unreadable={allowed}")
            site.expect_exit(launched, 0 if number % 2 == 0 else 2)
            named = [path for path in damaged if path.name in launched.output]
            expect(len(named) == 15 or number % 2, f"{len(named)} of 15 damaged files are named")
            expect(named, "no damaged file is named")
            wanted = ("finished", "data_problem")[number % 2]
            expect(site.status().kind == wanted, f"the status is {site.status().kind!r}")
