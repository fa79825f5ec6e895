"""Commands that make many runs or data, killed at every stage."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import signal
import sys
import tarfile
import time
from pathlib import Path

from tests.faults.matrix import fault
from tests.faults.site import Launched, Site, expect
from tests.faults.verdict import digest, leftovers

FEW = (
    "scale=smoke",
    "hardware=cpu",
    "hardware.threads=1",
    "budget='30 steps'",
    "schedule.warmup='2 steps'",
    "checkpoint.every='5 steps'",
)
ENDS = (signal.SIGKILL, signal.SIGTERM)


def reproduce(site: Site, outputs: Path) -> Launched:
    paths = [f"paths.outputs={outputs}", f"paths.data={site.workshop.data}"]
    base = [sys.executable, "-m", "scripts.reproduce", "imagenet", "--tables", "2"]
    return site.start([*base, *FEW, *paths])


def sweep(site: Site, outputs: Path) -> Launched:
    paths = [f"paths.outputs={outputs}", f"paths.data={site.workshop.data}"]
    axes = ["experiment=imagenet/novograd_100ep", "multiply.lr=0.5,1", "jobs=2"]
    return site.start([sys.executable, "-m", "scripts.sweep", *axes, *FEW, *paths])


def weights(outputs: Path) -> dict[str, str]:
    """The last checkpoint of every run, by the run's name."""
    found = {}
    for run in outputs.glob("*/*/record.json"):
        last = max(run.parent.glob("checkpoints/step-*.pt"))
        found[run.parent.name] = digest(last)
    return found


def tables(text: str) -> list[str]:
    """Lines of tables without times."""
    return [line for line in text.splitlines() if "│" in line or "|" in line]


def kill_at_every_stage(site: Site, tries: int, start: object) -> None:
    assert callable(start)
    site.reference()  # makes the data
    undisturbed = site.folder / "undisturbed"
    began = time.monotonic()
    first: Launched = start(site, undisturbed)
    if first.wait(300) != 0:
        raise RuntimeError(f"an undisturbed command failed: {first.output}")
    seconds, wanted = time.monotonic() - began, weights(undisturbed)
    for number in range(tries):
        how = ENDS[number % 2]
        after = (number + site.random.uniform(0, 1)) / tries * seconds
        with site.attempt(f"{how.name} after {after:.1f} of {seconds:.0f} s"):
            launched: Launched = start(site, site.outputs)
            time.sleep(after)
            launched.send(how)
            code = launched.wait(60)
            expected = (-signal.SIGKILL, 0) if how == signal.SIGKILL else (75, 0, -signal.SIGTERM)
            expect(code in expected, f"exit status {code}: {launched.last_lines()}")
            if how == signal.SIGTERM and code < 0:
                expect(False, "TERM was not handled: ended by the signal instead of exit status 75")
            expect("Traceback" not in launched.output, f"a traceback: {launched.last_lines()}")
    with site.attempt("then to the end"):
        launched = start(site, site.outputs)
        site.expect_exit(launched, 0)
        expect(weights(site.outputs) == wanted, "the runs have other weights, or some are missing")
        left = leftovers(site.outputs)
        expect(not left, f"left behind: {[path.name for path in left]}")


@fault(
    "make reproduce-… (a table of three runs) killed or stopped at every stage",
    "no process lives on; the same command makes the rest; the same bits in all runs",
    tries=4,
    quick=1,
)
def reproduce_killed(site: Site, tries: int) -> None:
    kill_at_every_stage(site, tries, reproduce)


@fault(
    "a sweep of two runs killed or stopped at every stage",
    "as above",
    tries=2,
    quick=0,
)
def sweep_killed(site: Site, tries: int) -> None:
    kill_at_every_stage(site, tries, sweep)


def shards(site: Site) -> Path:
    """The digits as webdataset shards of ImageNet, some copies of them so that it takes a while."""
    site.reference()
    folder = site.folder / "shards"
    folder.mkdir()
    for split, copies in (("train", 6), ("val", 1)):
        for copy in range(copies):
            with tarfile.open(folder / f"imagenet-{split}-{copy:06}.tar", "w") as tar:
                for path in sorted((site.workshop.data / "digits" / split).glob("*/*.JPEG")):
                    key = f"{path.parent.name}_{copy}_{path.stem}"
                    add(tar, f"{key}.cls", path.parent.name.encode())
                    add(tar, f"{key}.jpg", path.read_bytes())
    return folder


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not re.search(r"\.(json|lock)$", path.name)
    }


@fault(
    "scripts.prepare killed at random moments",
    "the same command completes the set, byte for byte; a half-made set is never taken for whole",
    tries=5,
    quick=1,
)
def prepare_killed(site: Site, tries: int) -> None:
    source = shards(site)

    def prepare(data: Path) -> Launched:
        command = [sys.executable, "-m", "scripts.prepare", "imagenet"]
        return site.start([*command, "--from", str(source), "--data", str(data)])

    began = time.monotonic()
    first = prepare(site.folder / "undisturbed")
    if first.wait(120) != 0:
        raise RuntimeError(f"an undisturbed command failed: {first.output}")
    seconds, wanted = time.monotonic() - began, content(site.folder / "undisturbed")
    data = site.folder / "data"
    for _ in range(tries):
        after = site.random.uniform(0.3, 1) * seconds
        with site.attempt(f"after {after:.1f} of {seconds:.1f} s"):
            shutil.rmtree(data, ignore_errors=True)
            launched = prepare(data)
            time.sleep(after)
            launched.send(signal.SIGKILL)
            launched.wait(10)
            again = prepare(data)
            site.expect_exit(again, 0)
            expect(content(data) == wanted, "other files than without the kill")
