"""Files of a run that were damaged, lost or exchanged between two starts."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from engine.checkpoint import CheckpointError, CheckpointStore, Manifest
from engine.rows import ROWS_FILE
from tests.faults.matrix import fault
from tests.faults.site import Site, expect
from tests.faults.verdict import clean_rows

Damage = Callable[[Path, Site], None]
NESTED = "[" * 100_000


def stopped_run(site: Site) -> Path:
    """A run that was stopped after some checkpoints; made once."""
    kept = site.workshop.folder / "stopped"
    with site.workshop.once("stopped"):
        if not kept.exists():
            launched = site.launch()
            launched.until(lambda: site.step() >= 15)
            launched.send(signal.SIGTERM)
            if launched.wait() != 75:
                raise RuntimeError(f"a run could not be stopped: {launched.output}")
            shutil.copytree(site.outputs, kept)
    return kept


def take(site: Site, source: Path) -> Path:
    """A copy of a run's outputs as this site's own; the run's folder."""
    shutil.rmtree(site.outputs, ignore_errors=True)
    shutil.copytree(source, site.outputs)
    assert site.run is not None
    return site.run


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*.pt"))


def alone(path: Path, content: bytes) -> None:
    """Writes to this name only: best.pt may be a hard link to the same file."""
    path.unlink()
    path.write_bytes(content)


def flip(path: Path, site: Site) -> None:
    data = bytearray(path.read_bytes())
    data[site.random.randrange(len(data))] ^= 1 << site.random.randrange(8)
    alone(path, bytes(data))


def truncate(path: Path, site: Site) -> None:
    data = path.read_bytes()
    alone(path, data[: site.random.randrange(1, len(data))])


def zero(path: Path, site: Site) -> None:
    """As after a power failure: the size is right, the content is not there."""
    alone(path, bytes(path.stat().st_size))


def empty(path: Path, _: Site) -> None:
    alone(path, b"")


def remove(path: Path, _: Site) -> None:
    path.unlink()


def of_manifest(damage: Damage) -> Damage:
    return lambda path, site: damage(path.with_suffix(".json"), site)


DAMAGES: dict[str, Damage] = {
    "a flipped bit": flip,
    "truncated": truncate,
    "zeroed": zero,
    "emptied": empty,
    "removed": remove,
    "a flipped bit in the manifest": of_manifest(flip),
    "the manifest emptied": of_manifest(empty),
    "the manifest removed": of_manifest(remove),
    "the manifest deeply nested": of_manifest(lambda path, _: alone(path, NESTED.encode())),
}


@fault(
    "the newest checkpoint damaged between two starts",
    "not used, with a warning that names it; resumed from the one before, to the same bits",
    tries=len(DAMAGES),
    quick=1,
)
def damaged_checkpoint(site: Site, tries: int) -> None:
    reference, stopped = site.reference(), stopped_run(site)
    for number in range(tries):
        kind = [*DAMAGES][number % len(DAMAGES)]
        with site.attempt(kind):
            path = newest(take(site, stopped))
            DAMAGES[kind](path, site)
            launched = site.finish()
            if kind != "the manifest removed":  # as after a kill in a save
                expect(path.name in launched.output, f"no warning names {path.name}")
            site.expect_as(reference)


@fault(
    "a flipped bit in the only checkpoint, read as a run reads it", "refused", tries=200, quick=50
)
def flipped_bit(site: Site, tries: int) -> None:
    run = stopped_run(site)
    found = next(run.glob("*/*/checkpoints"))
    last = newest(found.parent)
    manifest = Manifest.read(last.with_suffix(".json"))
    folder = site.folder / "checkpoints"
    for number in range(tries):
        with site.attempt(f"flip {number + 1}"):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for path in (last, last.with_suffix(".json")):
                shutil.copyfile(path, folder / path.name)
            flip(folder / last.name, site)
            store = CheckpointStore(folder, manifest.fingerprint, {}, log=lambda text: None)
            try:
                loaded = store.load_latest()
            except CheckpointError:
                continue
            expect(loaded is None, "loaded")


@fault(
    "all checkpoints damaged",
    "exit status 3 and nothing changed, instead of a silent start from zero",
    tries=2,
    quick=1,
)
def all_checkpoints_damaged(site: Site, tries: int) -> None:
    stopped = stopped_run(site)
    for number in range(tries):
        with site.attempt(("truncated", "zeroed")[number % 2]):
            run = take(site, stopped)
            for path in (run / "checkpoints").glob("*.pt"):
                (truncate, zero)[number % 2](path, site)
            before = {p.name: p.read_bytes() for p in (run / "checkpoints").iterdir()}
            launched = site.launch()
            site.expect_exit(launched, 3)
            after = {p.name: p.read_bytes() for p in (run / "checkpoints").iterdir()}
            expect(after == before, "the damaged checkpoints were changed")
            expect(site.status().kind == "checkpoint_problem", f"status {site.status().kind}")


@fault(
    "checkpoints of another configuration",
    "exit status 3; the message shows what differs",
    tries=1,
    quick=1,
)
def foreign_checkpoint(site: Site, tries: int) -> None:
    for _ in range(tries):
        with site.attempt("of seed 0 for seed 1"):
            run = take(site, stopped_run(site))
            os.rename(run, run.with_name(run.name.removesuffix("-s0") + "-s1"))  # noqa: PTH104
            launched = site.launch("seed=1")
            site.expect_exit(launched, 3)
            expect("seed: 0 → 1" in launched.output, launched.last_lines())


def overwrite(name: str, content: str) -> Damage:
    def damage(run: Path, _: Site) -> None:
        (run / name).write_text(content)

    return damage


def drop(*names: str) -> Damage:
    def damage(run: Path, _: Site) -> None:
        for name in names:
            (run / name).unlink()

    return damage


OF_FINISHED: dict[str, Damage] = {
    "the record removed": drop("record.json"),
    "the record emptied": overwrite("record.json", ""),
    "the record deeply nested": overwrite("record.json", NESTED),
    "the status removed": drop("status.json"),
    "the status is []": overwrite("status.json", "[]"),
}


def change_rows(change: Callable[[list[bytes]], list[bytes]]) -> Damage:
    def damage(run: Path, _: Site) -> None:
        path = run / ROWS_FILE
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return damage


def torn(lines: list[bytes]) -> list[bytes]:
    return [*lines[:1], lines[1][:20] + b"\n", *lines[2:]]


def other_digit(lines: list[bytes]) -> list[bytes]:
    mark = b'"train/loss": '
    at = lines[1].index(mark) + len(mark)
    digit = b"7" if lines[1][at : at + 1] != b"7" else b"3"
    return [lines[0], lines[1][:at] + digit + lines[1][at + 1 :], *lines[2:]]


OF_STOPPED: dict[str, Damage] = {
    "a torn row in metrics.jsonl": change_rows(torn),
    "metrics.jsonl removed": drop(ROWS_FILE),
    "a changed digit in metrics.jsonl": change_rows(other_digit),
    "half of the last row of metrics.jsonl": change_rows(lambda ls: [*ls[:-1], ls[-1][:9]]),
    "the status deeply nested": overwrite("status.json", NESTED),
    "run.yaml emptied": overwrite("run.yaml", ""),
}


@fault(
    "record or status of a finished run lost or damaged",
    "the same command restores them",
    tries=len(OF_FINISHED),
    quick=1,
)
def lost_record(site: Site, tries: int) -> None:
    reference = site.reference()
    for kind in [*OF_FINISHED][:tries]:
        with site.attempt(kind):
            OF_FINISHED[kind](take(site, reference.folder.parents[1]), site)
            launched = site.launch()
            site.expect_exit(launched, 0)
            site.expect_as(reference)


@fault(
    "rows, status or run.yaml of a stopped run lost or damaged",
    "restored, or a message names the file and what is lost; the same bits",
    tries=len(OF_STOPPED),
    quick=1,
)
def lost_rows(site: Site, tries: int) -> None:
    reference, stopped = site.reference(), stopped_run(site)
    for kind in [*OF_STOPPED][:tries]:
        with site.attempt(kind):
            OF_STOPPED[kind](take(site, stopped), site)
            launched = site.launch()
            site.expect_exit(launched, 0)
            site.expect_as(reference, rows=False)
            assert site.run is not None
            if clean_rows(site.run) != clean_rows(reference.folder):
                expect(ROWS_FILE in launched.output, "rows were lost silently")
