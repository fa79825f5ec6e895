"""Processes that are killed, frozen or starved, without a warning."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.faults.matrix import fault
from tests.faults.site import ENDLESS, Launched, Site, Skipped, expect

PAIR = "hardware.processes=2"
MANY = "hardware.max_restarts=100"
SAME_BITS = "restarted by the launcher; the end has the bits of an undisturbed run"
CGROUPS = Path("/sys/fs/cgroup/memory")


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_workers(site: Site, launched: Launched, tries: int, world: int) -> None:
    """Of one command again and again, each at a random moment of its life."""
    killed: set[int] = set()
    for _ in range(tries):
        rank, after = site.random.randrange(world), site.random.uniform(0, 8)
        all_are_new = partial(site.are_new, killed, world)
        with site.attempt(f"rank {rank}, {after:.1f} s after its start", goes_on=True):
            expect(launched.until(all_are_new), f"ended before: {launched.last_lines()}")
            time.sleep(after)
            workers = site.workers()
            expect(len(workers) == world, f"a worker is gone: {launched.last_lines()}")
            killed |= set(workers)
            kill(workers[rank])
            expect(
                launched.until(partial(site.are_gone, killed)),
                f"not restarted: {launched.last_lines()}",
            )


def end_as_undisturbed(site: Site, launched: Launched, *words: str) -> None:
    """The last attempt of a chain: to the end."""
    with site.attempt("then to the end"):
        site.expect_exit(launched, 0)
        site.expect_as(site.reference(*words))


@fault("kill -9 of one of two workers, at random moments", SAME_BITS, tries=8, quick=1)
def kill_worker(site: Site, tries: int) -> None:
    site.reference(PAIR)
    launched = site.launch(PAIR, MANY)
    kill_workers(site, launched, tries, 2)
    end_as_undisturbed(site, launched, PAIR)


@fault("kill -9 of the worker during a save on a slow disk", SAME_BITS, tries=8, quick=1)
def kill_during_save(site: Site, tries: int) -> None:
    site.reference()
    slow = {"LD_PRELOAD": str(site.workshop.shim()), "FAULT_FSYNC_MS": "60"}
    launched = site.launch(MANY, environment=slow)
    seen: set[int] = set()  # what killed saves left, until the next one removes it

    def saves() -> set[int]:
        return inodes(site.outputs.glob("*/*/checkpoints/*.tmp")) - seen

    for _ in range(tries):
        after = site.random.uniform(0, 0.3)
        with site.attempt(f"{after * 1000:.0f} ms after a save began", goes_on=True):
            expect(launched.until(saves), f"ended before: {launched.last_lines()}")
            time.sleep(after)
            killed = site.workers()
            for pid in killed:
                kill(pid)
            seen |= inodes(site.outputs.glob("*/*/checkpoints/*.tmp"))
            expect(
                launched.until(partial(site.are_new, killed)),
                f"not restarted: {launched.last_lines()}",
            )
    end_as_undisturbed(site, launched)


def inodes(paths: Iterable[Path]) -> set[int]:
    found = set()
    for path in paths:
        with suppress(OSError):
            found.add(path.stat().st_ino)
    return found


@fault(
    "kill -9 of the launcher",
    "no process lives on; the same command resumes to the same bits",
    tries=3,
    quick=1,
)
def kill_launcher(site: Site, tries: int) -> None:
    reference = site.reference(PAIR)
    for _ in range(tries):
        after = site.random.uniform(0.2, 0.9) * reference.seconds
        with site.attempt(f"after {after:.1f} s"):
            launched = site.launch(PAIR)
            time.sleep(after)
            launched.send(signal.SIGKILL)
            launched.wait(10)
            site.expect_no_process(2.0)
    with site.attempt("then to the end"):
        site.finish(PAIR)
        site.expect_as(reference)


@fault(
    "a worker that hangs (SIGSTOP)",
    "noticed after hardware.timeout_s, restarted; the same bits",
    tries=1,
    quick=0,
    limit_s=240,
)
def frozen_worker(site: Site, tries: int) -> None:
    reference = site.reference(PAIR)
    for _ in range(tries):
        with site.attempt("rank 1"):
            shutil.rmtree(site.outputs, ignore_errors=True)
            launched = site.launch(PAIR, "hardware.timeout_s=15")
            launched.until(lambda: site.rows() >= 2)
            kill(site.workers()[1], signal.SIGSTOP)
            site.expect_exit(launched, 0, limit=200)
            expect("a worker was lost; restart 1" in launched.output, "not restarted")
            site.expect_as(reference)


@fault(
    "a worker out of memory, killed by the kernel (cgroup)",
    SAME_BITS,
    tries=2,
    quick=1,
)
def out_of_memory(site: Site, tries: int) -> None:
    group = CGROUPS / f"novograd-{site.name}-{os.getpid()}"
    reference = site.reference()
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(8 << 20))
    except OSError as problem:
        raise Skipped(f"no memory cgroup can be made: {problem}") from None
    site.at_the_end(group.rmdir)
    for _ in range(tries):
        with site.attempt("8 MiB more than it had"):
            shutil.rmtree(site.outputs, ignore_errors=True)
            launched = site.launch()
            launched.until(lambda: site.rows() >= 2)
            victims = site.workers()
            for pid in victims:
                (group / "cgroup.procs").write_text(str(pid))
            expect(
                launched.until(partial(site.are_gone, victims)),
                "was not killed before the end",
            )
            site.expect_exit(launched, 0)
            expect("a worker was lost; restart 1" in launched.output, "not restarted")
            site.expect_as(reference)


@fault(
    "kill -9 of a loader process",
    SAME_BITS,
    tries=2,
    quick=1,
)
def kill_loader(site: Site, tries: int) -> None:
    reference = site.reference()
    for _ in range(tries):
        with site.attempt("one of two"):
            shutil.rmtree(site.outputs, ignore_errors=True)
            launched = site.launch("hardware.data_workers=2")
            launched.until(lambda: site.rows() >= 2)
            (worker,) = site.workers()
            loaders = [int(pid) for pid in children_of(worker) if is_loader(int(pid), worker)]
            expect(loaders, "there are no loader processes")
            kill(site.random.choice(loaders))
            site.expect_exit(launched, 0)
            expect("a worker was lost; restart 1" in launched.output, "not restarted")
            site.expect_as(reference)


def children_of(pid: int) -> list[str]:
    found: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += (task / "children").read_text().split()
    return found


def is_loader(pid: int, parent: int) -> bool:
    """A fork of the worker: it has the same command line."""
    with suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes()
            == Path(f"/proc/{parent}/cmdline").read_bytes()
        )
    return False


@fault(
    "the same run started twice",
    "the second is refused with exit status 4, the first is not disturbed",
    tries=2,
    quick=1,
)
def double_launch(site: Site, tries: int) -> None:
    for number in range(tries):
        with site.attempt(f"{number + 1}"):
            first = site.launch(ENDLESS)
            first.until(lambda: site.rows() >= 1)
            second = site.launch(ENDLESS)
            site.expect_exit(second, 4)
            expect(first.is_running, "the first has ended")
            rows = site.rows()
            first.until(partial(site.has_more_rows_than, rows))
            first.send(signal.SIGTERM)
            site.expect_exit(first, 75)
