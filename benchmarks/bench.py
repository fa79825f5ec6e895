"""Runs benches, each in a process of its own, and writes their records."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from analysis.folders import ROOT
from analysis.performance import (
    HEAD,
    BenchRecord,
    contest_cells,
    environment_line,
    read_contests,
    to_raw,
)
from analysis.tables import text_table
from benchmarks.contest import BenchOptions, Findings
from engine.formats import format_time
from engine.memory import keep_freed_memory
from engine.provenance import describe_environment
from engine.records import write_json

ON_GPU = ("optim", "librispeech", "wmt", "wikitext")  # the other benches measure the CPU


def on_its_device(name: str, options: BenchOptions) -> BenchOptions:
    """The CPU for a bench that measures no other, so that its record does not name a GPU."""
    return options if name in ON_GPU else replace(options, device=torch.device("cpu"))


def run_bench(name: str, options: BenchOptions, folder: Path) -> BenchRecord:
    """Measures, prints and writes `<name>.json`; call it once in a process."""
    options = on_its_device(name, options)
    keep_freed_memory()  # as the workers of a run do
    environment = describe_environment()  # of the code that is measured
    before = time.perf_counter()
    found: Findings = import_module(f"benchmarks.{name}").measure(options)
    taken = time.perf_counter() - before
    record = make_record(name, found, taken, options.device, environment)
    contests = read_contests()[name]
    missing = {contest.name for contest in contests} - {m.contest for m in record.measurements}
    path = record.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, to_raw(record, contests))
    for file, text in found.pages.items():
        (path.parent / file).write_text(text)
    rows = [contest_cells(contest, record) for contest in contests if contest.name not in missing]
    if contests:
        print(text_table([list(HEAD), *rows], f"{name}: {environment_line(record)}"), flush=True)
    print(f"wrote {path}", flush=True)
    for contest in sorted(missing):
        print(f"{name}: {contest} could not be measured here")
    return record


def make_record(
    name: str, found: Findings, taken: float, device: torch.device, environment: dict[str, Any]
) -> BenchRecord:
    """With the machine, the versions and the commit."""
    hardware = environment["hardware"]
    vectors = torch.backends.cpu.get_cpu_capability()  # AVX512, AVX2 …: kinds of one name differ
    cpu = f"{re.sub('[(](R|TM)[)]', '', hardware.get('name', 'CPU'))}, {vectors}"
    machine = hardware["names"][0] if device.type == "cuda" else cpu
    return BenchRecord(
        bench=name,
        date=date.today().isoformat(),
        seconds=taken,
        threads=torch.get_num_threads(),
        commit=environment["commit"],
        dirty=environment["dirty"],
        versions=environment["versions"],
        machine=machine,
        measurements=found.measurements,
        detail=found.detail,
    )


def choose_device(name: str | None) -> torch.device:
    """The named one, else a GPU where there is one; ValueError for one that is not there."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"--device must be cpu, cuda or cuda:<number>, not {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cpu, cuda or cuda:<number>, not {name!r}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {name}: there are {torch.cuda.device_count()} CUDA devices")
    return device


def run_each(names: Sequence[str], arguments: Sequence[str]) -> int:
    """One process per bench, so that none inherits another's memory, threads or compiled code."""
    before = time.perf_counter()
    for number, name in enumerate(names, 1):
        so_far = format_time(time.perf_counter() - before)
        print(f"bench {number} of {len(names)}: {name}, {so_far} so far", flush=True)
        command = [sys.executable, "-m", "scripts.bench", name, *arguments]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status:
            print(f"bench {name} failed with status {status}", file=sys.stderr)
            return status
    return 0
