"""docs/performance.md and the README's lines are what the records of benches give."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from analysis.folders import BENCH, ROOT
from analysis.pages import markers
from analysis.performance import (
    BenchRecord,
    Measurement,
    Quartiles,
    read_bench,
    read_benches,
    read_contests,
    render_performance,
    render_speed_lines,
    to_raw,
)
from analysis.scaling import checkpoint_bytes, collectives, render_scaling, ring_bytes


def record(bench: str, *measurements: Measurement, machine: str = "A CPU") -> BenchRecord:
    versions: dict[str, str | None] = {"torch": "2.11.0"}
    return BenchRecord(
        bench, "2026-01-02", 90.0, 2, "abc" * 13, True, versions, machine, [*measurements]
    )


def write(folder, found: BenchRecord) -> None:
    raw = to_raw(found, read_contests()[found.bench])
    found.path(folder).parent.mkdir(exist_ok=True)
    found.path(folder).write_text(json.dumps(raw))


def test_the_page_is_what_the_records_give():
    assert (ROOT / "docs" / "performance.md").read_text() == render_performance(BENCH)
    assert (ROOT / "docs" / "scaling.md").read_text() == render_scaling(BENCH)


def test_the_readme_shows_five_lines():
    begin, end = markers("performance")
    text = (ROOT / "README.md").read_text()
    block = text.split(begin)[1].split(end)[0].strip("\n")
    assert block == render_speed_lines(BENCH)
    assert len([line for line in block.splitlines() if line.startswith("|")]) == 2 + 5


def test_records_in_the_checkout_are_of_a_clean_commit():
    for found in (record for some in read_benches(BENCH).values() for record in some):
        assert found.dirty is False, f"{found.path(BENCH)}: run it from a clean commit"


def test_what_was_not_run_says_so(tmp_path):
    page = render_performance(tmp_path)
    contests = [contest for some in read_contests().values() for contest in some]
    competed = [contest for contest in contests if contest.against]
    assert page.count("| not run |") == len(competed)
    assert "Not run: `make bench-wmt`." in page


def test_a_measurement_is_shown_with_its_quartiles_noise_limit_and_promise(tmp_path):
    ratio, noise = Quartiles(1.0, 1.05, 1.1), Quartiles(0.9, 1.0, 1.2)
    found = Measurement("step", 12.5, 9, 11.9, ratio, noise, "the peak", 0.25)
    write(tmp_path, record("librispeech", found))
    assert read_bench(tmp_path / "a-cpu" / "librispeech.json") == record("librispeech", found)
    page = render_performance(tmp_path)
    shown = "| 1.05 (1.00 to 1.10) | 1.00 (0.90 to 1.20) | 12.5 utterances/s | ≥ 1.10: not reached"
    assert shown in page
    assert "| 25 % of the peak |" in page
    assert "A CPU, 2 threads, torch 2.11.0; 2026-01-02, commit abcabcabcabc with changes" in page
    assert "| 1.05¹ | ≥ 1.10 |" in render_speed_lines(tmp_path)


def test_machines_stand_side_by_side(tmp_path):
    for machine, median in (("Some CPU", 1.2), ("A CPU", 0.9)):
        ratio = Quartiles(median, median, median)
        found = Measurement("step", 1.0, 9, 1.0, ratio)
        write(tmp_path, record("librispeech", found, machine=machine))
    head, *rows = render_speed_lines(tmp_path).splitlines()
    assert head == "|  | against | A CPU | Some CPU | target |"
    assert [row for row in rows if "| 0.90¹ | 1.20 | ≥ 1.10 |" in row]
    assert [row for row in rows if "| not run | not run | ≥ 1.33 |" in row]
    page = render_performance(tmp_path)
    assert page.index("A CPU, 2 threads") < page.index("Some CPU, 2 threads")


def test_a_file_that_is_no_record_is_named(tmp_path):
    (tmp_path / "a-cpu").mkdir()
    (tmp_path / "a-cpu" / "wmt.json").write_text("{}")
    with pytest.raises(ValueError, match=r"wmt\.json is not a record of a bench"):
        render_performance(tmp_path)


def test_costs_of_many_processes_follow_their_formulas():
    row = {"parameters": 100, "tensors": 3, "buckets": 2, "buffer_bytes": 7, "carry_bytes": 11}
    assert ring_bytes(row, 1) == 0
    assert ring_bytes(row, 4) == 600
    assert (collectives(row, 1), collectives(row, 2)) == (0, 3)
    assert checkpoint_bytes(row, 5) == 800 + 12 + 35 + 11
    assert checkpoint_bytes(row, 5, moments=2) - checkpoint_bytes(row, 5) == 400


def test_scaling_without_records_says_so(tmp_path):
    page = render_scaling(tmp_path)
    assert "Counts: not run." in page
    assert "Measurements: not run." in page


def test_growth_is_shown_by_model_tensors_length_and_data(tmp_path):
    model = {"layers": 2, "width": 128, "parameters": 2_000_000, "ms": 50.0}
    detail = {
        "models": [model | {"kept_mb": 16.0, "step_mb": 33.7}],
        "tensors": [{"tensors": 10, "novograd_ms": 0.5, "adamw_ms": 1.0}],
        "lengths": [{"length": 64, "ms": 20.0, "tokens_per_s": 12_800}],
        "items": [{"what": "an order", "items": 1_000_000, "seconds": 0.5, "bytes": 3e7}],
    }
    write(tmp_path, replace(record("growth"), detail=detail))
    cells = [
        [cell.strip() for cell in line.split("|")] for line in render_scaling(tmp_path).split("\n")
    ]
    assert ["", "2 × 128", "2,000,000", "50", "25", "16 MB", "33.7 MB", ""] in cells
    assert ["", "10", "0.5", "1", "50", ""] in cells
    assert ["", "an order", "100,000,000", "50 s", "3 GB", "extrapolated", ""] in cells
