"""Processes that are killed, frozen or starved, without a warning."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping
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


class Victim:
    """A run whose workers are killed again and again; one that has ended is started anew."""

    def __init__(
        self, site: Site, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self.site, self._arguments, self._environment = site, arguments, environment
        self.reference = site.reference(*arguments)
        self._seen: set[tuple[int, int]] = set()  # temporary files that killed workers left
        self._launched = self._launch()

    def _launch(self) -> Launched:
        return self.site.launch(*self._arguments, MANY, environment=self._environment)

    def kill_when(self, ready: Callable[[], object], after: float, rank: int, note: str) -> None:
        """Kills a worker so long after a moment that comes in every run."""
        while True:
            came = self._launched.until(ready)
            time.sleep(after if came else 0)
            workers = self.site.workers()
            if came and rank < len(workers) and self._launched.is_running:
                break
            if not self._launched.is_running:
                self.end()
                shutil.rmtree(self.site.outputs)
                self._launched = self._launch()
        with self.site.attempt(note, goes_on=True):
            kill(workers[rank])
            self._seen |= self._temporaries()
            self._launched.until(partial(self.site.are_gone, workers))
            again = partial(self.site.are_new, workers, len(workers))
            # A worker that was killed when all was done is not needed again.
            expect(
                self._launched.until(lambda: again() or self.site.status().is_finished),
                f"not restarted: {self._launched.last_lines()}",
            )

    def is_writing(self) -> bool:
        """Whether there is a temporary file that no killed worker left."""
        return bool(self._temporaries() - self._seen) and bool(self.site.workers())

    def _temporaries(self) -> set[tuple[int, int]]:
        found = set()
        for pattern in ("*/*/checkpoints/*.tmp", "*/*/.*.tmp"):
            for path in self.site.outputs.glob(pattern):
                with suppress(OSError):
                    found.add((path.stat().st_ino, path.stat().st_mtime_ns))
        return found

    def end(self) -> None:
        """To the end, as the undisturbed run."""
        with self.site.attempt("then to the end"):
            self.site.expect_exit(self._launched, 0)
            self.site.expect_as(self.reference)


@fault("kill -9 of one of two workers, at random moments", SAME_BITS, tries=8, quick=1)
def kill_worker(site: Site, tries: int) -> None:
    victim = Victim(site, PAIR)
    for _ in range(tries):
        rank, after = site.random.randrange(2), site.random.uniform(0, 0.6)
        note = f"rank {rank}, {after * victim.reference.seconds:.1f} s after its start"
        both = partial(site.are_new, (), 2)
        victim.kill_when(both, after * victim.reference.seconds, rank, note)
    victim.end()


@fault("kill -9 of the worker during a save on a slow disk", SAME_BITS, tries=8, quick=1)
def kill_during_save(site: Site, tries: int) -> None:
    slow = {"LD_PRELOAD": str(site.workshop.shim()), "FAULT_FSYNC_MS": "60"}
    victim = Victim(site, environment=slow)
    for _ in range(tries):
        after = site.random.uniform(0, 0.3)
        note = f"{after * 1000:.0f} ms after a write began"
        victim.kill_when(victim.is_writing, after, 0, note)
    victim.end()


@fault(
    "renames that leave a moment without the target, and a kill -9 in it",
    SAME_BITS,
    tries=5,
    quick=1,
)
def rename_with_a_gap(site: Site, tries: int) -> None:
    shim = {"LD_PRELOAD": str(site.workshop.shim())}
    gap = shim | {"FAULT_RENAME": "gap", "FAULT_RENAME_MS": "150"}
    victim = Victim(site, environment=gap)
    for _ in range(tries):
        after = site.random.uniform(0, 0.4)
        note = f"{after * 1000:.0f} ms after a write began"
        victim.kill_when(victim.is_writing, after, 0, note)
    victim.end()


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
