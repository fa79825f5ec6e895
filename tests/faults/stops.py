"""Stop signals at any moment."""

from __future__ import annotations

import os
import shutil
import signal
import time
from functools import partial

from tests.faults.matrix import fault
from tests.faults.site import Launched, Site, expect

SAVED = "exit status 75, saved; the same command resumes to the same bits"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


def expect_stopped(site: Site, launched: Launched, *, or_finished: bool = False) -> int:
    """Exit status and status agree."""
    code = site.expect_exit(launched, *([75, 0] if or_finished else [75]))
    kind = site.status().kind
    wanted = {75: ("preempted", ""), 0: ("finished",)}[code]
    expect(kind in wanted, f"exit status {code}, but the status is {kind!r}")
    return code


def to_the_end(site: Site, *arguments: str, reference: tuple[str, ...] = ()) -> None:
    with site.attempt("then to the end"):
        site.finish(*arguments)
        site.expect_as(site.reference(*(reference or arguments)))


@fault(
    "TERM, INT, USR1 and HUP at random moments from the first millisecond", SAVED, tries=12, quick=3
)
def signals(site: Site, tries: int) -> None:
    reference = site.reference()
    for number in range(tries):
        which = SIGNALS[number % len(SIGNALS)]
        after = site.random.uniform(0, 1) * reference.seconds
        with site.attempt(f"{which.name} after {after:.2f} s"):
            if site.status().is_finished:
                shutil.rmtree(site.outputs)
            launched = site.launch()
            time.sleep(after)
            launched.send(which)
            expect_stopped(site, launched, or_finished=True)
    to_the_end(site)


@fault("a signal while the launcher still imports", SAVED, tries=4, quick=1)
def signals_at_start(site: Site, tries: int) -> None:
    for number in range(tries):
        which, after = SIGNALS[number % len(SIGNALS)], site.random.uniform(0.05, 3)
        with site.attempt(f"{which.name} after {after:.2f} s"):
            launched = site.launch()
            time.sleep(after)
            launched.send(which)
            expect_stopped(site, launched)


SLOW_EVALUATION = ("evaluation.batch=1", "evaluation.every='5 steps'")


def is_evaluating(site: Site, rows: int) -> bool:
    """The row of a step's training comes right before its evaluation, and then that one's."""
    return site.rows() > rows + 2 and site.rows() % 2 == 1


@fault(
    "TERM during an evaluation",
    "as above; the best checkpoint is kept as in an undisturbed run",
    tries=3,
    quick=1,
)
def signal_in_evaluation(site: Site, tries: int) -> None:
    site.reference(*SLOW_EVALUATION)
    for _ in range(tries):
        rows, after = site.rows(), site.random.uniform(0, 0.5)
        with site.attempt(f"{after * 1000:.0f} ms after an evaluation began"):
            launched = site.launch(*SLOW_EVALUATION)
            launched.until(partial(is_evaluating, site, rows))
            time.sleep(after)
            launched.send(signal.SIGTERM)
            expect_stopped(site, launched)
    to_the_end(site, *SLOW_EVALUATION)


@fault("TERM during a save on a slow disk", SAVED, tries=3, quick=1)
def signal_in_save(site: Site, tries: int) -> None:
    slow = {"LD_PRELOAD": str(site.workshop.shim()), "FAULT_FSYNC_MS": "200"}
    for _ in range(tries):
        after = site.random.uniform(0, 0.5)
        with site.attempt(f"{after * 1000:.0f} ms after a save began"):
            launched = site.launch(environment=slow)
            launched.until(lambda: list(site.outputs.glob("*/*/checkpoints/*.tmp")))
            time.sleep(after)
            launched.send(signal.SIGTERM)
            expect_stopped(site, launched)
    to_the_end(site)


@fault("TERM right after the end", "exit status 0, the status stays finished", tries=3, quick=1)
def signal_after_end(site: Site, tries: int) -> None:
    reference = site.reference()
    for _ in range(tries):
        after = site.random.uniform(0, 0.2)
        with site.attempt(f"{after * 1000:.0f} ms after the status says finished"):
            shutil.rmtree(site.outputs, ignore_errors=True)
            launched = site.launch()
            launched.until(lambda: site.status().is_finished)
            time.sleep(after)
            launched.send(signal.SIGTERM)
            site.expect_exit(launched, 0)
            site.expect_as(reference)


@fault(
    "a second TERM while the worker can't obey the first",
    "exit status 75 at once, earlier checkpoints whole; resumes to the same bits",
    tries=1,
    quick=1,
)
def two_signals(site: Site, tries: int) -> None:
    for _ in range(tries):
        with site.attempt("to a frozen worker"):
            launched = site.launch()
            launched.until(lambda: site.step() >= 10)
            (worker,) = site.workers()
            os.kill(worker, signal.SIGSTOP)
            launched.send(signal.SIGTERM)
            launched.until(lambda: list(site.outputs.glob("*/*/logs/stop")))
            launched.send(signal.SIGTERM)
            expect_stopped(site, launched)
    to_the_end(site)
