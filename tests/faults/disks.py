"""Disks that are full, and file systems whose renames are not atomic."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.faults.matrix import fault
from tests.faults.site import Launched, Site, Skipped, expect
from tests.faults.verdict import is_json

KILOBYTE = 1024


def small_disk(site: Site, size: str) -> None:
    """Mounted where the site's runs are written."""
    site.outputs.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(site.outputs)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Skipped(f"no small disk can be mounted: {done.stderr.strip()}")
    site.at_the_end(lambda: subprocess.run(["umount", "-l", str(site.outputs)], check=True))


def fill(path: Path, leave: int) -> None:
    """Takes the rest of the disk but for some bytes, as often as that is needed."""
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while (free := shutil.disk_usage(path.parent).free - leave) > 0:
            file.write(bytes(min(free, 64 * KILOBYTE)))


@fault(
    "a disk that fills up at a random moment, to the last byte or nearly so",
    "exit status 1 or 2, one line that says so, no damaged file; with space again to the same bits",
    tries=30,
    quick=3,
    limit_s=120,
)
def full_disk(site: Site, tries: int) -> None:
    reference = site.reference()
    small_disk(site, "3m")
    filler = site.outputs / "filler"
    for number in range(tries):
        # Every fifth from the launcher on; the others in the worker alone, which starts sooner.
        by_launcher = site.run is None or number % 5 == 0
        leave = site.random.choice([0, 0, 4, 32, 150]) * KILOBYTE
        after = site.random.uniform(0, 1) * reference.seconds * (1 if by_launcher else 0.6)
        who = "launch" if by_launcher else "worker"
        with site.attempt(f"{who}, {leave // KILOBYTE} KiB left after {after:.1f} s"):
            launched = site.launch() if by_launcher else train(site)
            time.sleep(after)
            fill(filler, leave)
            try:
                expect_no_space_left(site, launched, filler, leave)
            finally:
                filler.unlink(missing_ok=True)
            if site.status().is_finished:
                site.expect_as(reference)
                empty(site.outputs)
    with site.attempt("with space again, to the end"):
        site.finish()
        site.expect_as(reference)


def train(site: Site) -> Launched:
    """The command of a worker, without a launcher."""
    return site.start([sys.executable, "-m", "scripts.train", str(site.run)])


def expect_no_space_left(site: Site, launched: Launched, filler: Path, leave: int) -> None:
    end = time.monotonic() + 90 * site.workshop.patience
    while launched.is_running:
        fill(filler, leave)  # what is removed must not make room
        time.sleep(0.05)
        expect(time.monotonic() < end, f"still running: {launched.last_lines()}")
    code = site.expect_exit(launched, 0, 1, 2)
    if code:
        said = launched.output + site.status().message
        expect("No space left on device" in said, f"no line says why: {launched.last_lines()}")
    if (run := site.run) is not None:
        status = run / "status.json"
        expect(not status.exists() or is_json(status), "half a status was written")
        kind = site.status().kind
        wrong = (code == 0) != (kind == "finished") or kind == "running"
        expect(not wrong, f"exit status {code}, but the status is {kind!r}")


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@fault(
    "renames that succeed and report an error (NFS after a lost answer)",
    "finished, or failed with a message and resumed by the same command; the same bits",
    tries=2,
    quick=1,
)
def rename_reported_lost(site: Site, tries: int) -> None:
    reference = site.reference()
    nfs = {"LD_PRELOAD": str(site.workshop.shim()), "FAULT_RENAME": "repeated"}
    for _ in range(tries):
        with site.attempt("every third rename"):
            shutil.rmtree(site.outputs, ignore_errors=True)
            for _ in range(5):
                launched = site.launch(environment=nfs)
                code = site.expect_exit(launched, 0, 1, 2)
                if code == 0:
                    break
                expect("No such file" in launched.output, f"no message: {launched.last_lines()}")
            expect(code == 0, "failed five times")
            site.expect_as(reference)


@fault(
    "TERM with a full disk",
    "exit status 1, and earlier checkpoints are kept; with space again to the same bits",
    tries=1,
    quick=1,
)
def full_disk_and_signal(site: Site, tries: int) -> None:
    small_disk(site, "3m")
    for _ in range(tries):
        with site.attempt("at once"):
            launched = site.launch()
            launched.until(lambda: site.step() >= 10)
            fill(site.outputs / "filler", 0)
            launched.send(signal.SIGTERM)
            try:
                expect_no_space_left(site, launched, site.outputs / "filler", 0)
            finally:
                (site.outputs / "filler").unlink()
    with site.attempt("with space again, to the end"):
        site.finish()
        site.expect_as(site.reference())
