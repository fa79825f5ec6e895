"""A table shows what was run, where it belongs, and nothing else."""

from __future__ import annotations

from results.ledger import read_records, summarize
from results.render import text_table
from results.schema import read_paper


def record(experiment: str, top1: float, scale: str = "mini", data: str = "cifar10", seed: int = 0):
    return {
        "experiment": experiment,
        "scale": scale,
        "seed": seed,
        "final": {"val/top1": top1, "val/top5": 99.0},
        "config": {"data": {"name": data}},
    }


def cells(text: str, row: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(row + " "))
    return [cell for cell in line.split("   ") if cell.strip()]


def test_without_records_nothing_was_run():
    text = text_table(read_paper()[0], [])
    assert text.count("not run") == len(read_paper()[0].rows)
    assert "76.94/93.41" in text


def test_small_scales_never_stand_in_the_papers_columns():
    records = [
        record("imagenet/sgd_100ep", 60.0),
        record("imagenet/sgd_100ep", 62.0, seed=1),
        record("imagenet/sgd_100ep", 76.4, scale="paper", data="imagenet"),
        record("imagenet/sgd_200ep", 33.0, scale="smoke", data="digits"),
        record("imagenet/other", 1.0, data="unrelated"),
    ]
    text = text_table(read_paper()[0], records)
    header = text.splitlines()[1]
    assert "ours, mini: cifar10" in header
    assert "ours, smoke: digits" in header
    assert "unrelated" not in text
    _, paper, same, mini, smoke = cells(text, "table1/sgd-100")
    assert paper.strip() == "76.38/93.08"
    assert same.strip() == "76.40/99.00"
    assert mini.strip() == "61.00 ± 1.41 (n=2)/99.00 ± 0.00 (n=2)"
    assert smoke.strip() == "not run"
    others = [cell.strip() for cell in cells(text, "table1/sgd-200")[2:]]
    assert others == ["not run", "not run", "33.00/99.00"]


def test_cited_rows_are_called_so():
    text = text_table(read_paper()[1], [])
    assert "table2/you-8k (cited)" in text
    assert "see table3/novograd-8k" in text


def test_records_are_read_from_folders(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.json").write_text('{"final": {"m": 1.0}}')
    found = summarize(read_records([tmp_path]), "m")
    assert found is not None
    assert (found.mean, found.deviation, found.runs) == (1.0, None, 1)
    assert summarize(read_records([tmp_path]), "other") is None
