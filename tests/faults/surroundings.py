"""What surrounds a run: the clock, the checkout, W&B's service, numbers that are not finite."""

from __future__ import annotations

import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from engine.rows import read_rows
from engine.wandb_runs import WandbProblem, read_offline
from tests.faults.kills import PAIR, kill
from tests.faults.matrix import fault
from tests.faults.site import ROOT, Site, Skipped, expect
from tests.faults.stops import expect_stopped
from tests.faults.verdict import clean_rows, finite

YEARS_BACK = str(-3 * 365 * 86400)


@fault(
    "the clock set back three years, between two starts and in the middle of one",
    "resumes from the newest step; the same bits",
    tries=2,
    quick=1,
)
def clock_set_back(site: Site, tries: int) -> None:
    reference = site.reference()
    back = {"LD_PRELOAD": str(site.workshop.shim()), "FAULT_CLOCK_S": YEARS_BACK}
    for number in range(tries):
        with site.attempt(
            ("between two starts", "4 s after the start of each process")[number % 2]
        ):
            shutil.rmtree(site.outputs, ignore_errors=True)
            if number % 2 == 0:
                launched = site.launch()
                launched.until(lambda: site.step() >= 10)
                launched.send(signal.SIGTERM)
                expect_stopped(site, launched)
                site.finish(environment=back)
            else:
                site.finish(environment=back | {"FAULT_CLOCK_AFTER_S": "4"})
            site.expect_as(reference)


@fault(
    "a checkout that is mounted read-only",
    "runs, with outputs and data elsewhere; the same bits",
    tries=1,
    quick=1,
)
def read_only_checkout(site: Site, tries: int) -> None:
    reference = site.reference()
    mount = f"mount --bind {ROOT} {ROOT} && mount -o remount,ro,bind {ROOT}"
    # Root may write whatever the permissions say, so the mount must forbid it.
    inner = f'{mount} && cd {ROOT} && ! touch {ROOT}/written 2>/dev/null && exec "$@"'
    alone = ["unshare", "--mount", "sh", "-c", inner, "sh"]
    probe = subprocess.run([*alone, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        raise Skipped(f"the checkout can't be mounted read-only: {probe.stderr.strip()}")
    for _ in range(tries):
        with site.attempt("in a mount namespace"):
            launched = site.start([*alone, *site.command()])
            site.expect_exit(launched, 0)
            site.expect_as(reference)


OFFLINE = ("tracking=wandb", "tracking.wandb=offline", "tracking.log_every='5 steps'")


def services(site: Site) -> list[int]:
    """W&B's own processes."""
    found = []
    for pid in site.processes():
        with suppress(OSError):
            if b"wandb-core" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@fault(
    "W&B's service killed in mid-run (offline), or the worker that feeds it",
    "the run is not disturbed; its own rows are complete, and W&B's segments hold them all",
    tries=2,
    quick=1,
)
def wandb_killed(site: Site, tries: int) -> None:
    reference = site.reference()
    for number in range(tries):
        with site.attempt(("the service", "the worker")[number % 2]):
            shutil.rmtree(site.outputs, ignore_errors=True)
            launched = site.launch(*OFFLINE)
            launched.until(lambda: site.rows() >= 5)
            victims = services(site) if number % 2 == 0 else site.workers()
            expect(victims, "W&B has no service")
            for pid in victims:
                kill(pid)
            site.expect_exit(launched, 0)
            site.expect_as(reference)
            run = site.run
            assert run is not None
            try:
                mirrored = {int(row["step"]) for row in read_offline(run).read()}
            except WandbProblem as problem:
                expect(False, str(problem))
            missing = {int(row["step"]) for row in clean_rows(run)} - mirrored
            expect(not missing, f"W&B misses the rows of steps {sorted(missing)}")


@fault(
    "a loss that is not finite",
    "exit status 5, status diverged, a record without final numbers, no such weights saved",
    tries=2,
    quick=1,
)
def not_finite(site: Site, tries: int) -> None:
    arguments = ("experiment=imagenet/sgd_100ep", "optimizer.lr=1e30", "decay.apply_to=all")
    for number in range(tries):
        with site.attempt(f"{number + 1} processes"):
            shutil.rmtree(site.outputs, ignore_errors=True)
            launched = site.launch(*arguments, *([PAIR] if number else []))
            site.expect_exit(launched, 5)
            expect(site.status().kind == "diverged", f"the status is {site.status().kind!r}")
            run = site.run
            assert run is not None
            for path in (run / "checkpoints").glob("*.pt"):
                expect(finite(path), f"{path.name} has weights that are not finite")
            read_rows(run / "metrics.jsonl")
