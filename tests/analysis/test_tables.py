"""Tables for a terminal, and text that Markdown shows as it is."""

from __future__ import annotations

import sys

import pytest

from analysis.paper import read_paper
from analysis.tables import (
    headline_numbers,
    leads_by_passes,
    numbers_table,
    paper_table,
    text_table,
)
from analysis.templating import Markdown, escape, markdown_table
from engine.records import RunRecord
from tests.analysis.fakes import raw_record


def record(experiment: str, top1: float, **changes) -> RunRecord:
    return RunRecord(**raw_record(experiment, {"val/top1": top1, "val/top5": 99.0}, **changes))


def cells(text: str, row: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(row + " "))
    return [cell.strip() for cell in line.split("   ") if cell.strip()]


class TestText:
    LINES = (["name", "value"], ["x" * 150, "[red]1[/red]"], ["_y", "2"])

    def test_in_a_pipe_every_row_is_one_line_without_codes(self):
        text = text_table(self.LINES, "A title")
        title, head, rule, first, second = text.splitlines()
        assert title == "A title"
        assert head.split() == ["name", "value"]
        assert set(rule.strip()) == {"─"}
        assert first.split() == ["x" * 150, "[red]1[/red]"]
        assert second.split() == ["_y", "2"]
        assert "\x1b" not in text

    def test_on_a_terminal_cells_are_wrapped_not_cut(self, monkeypatch):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "60")
        text = text_table(self.LINES)
        assert max(map(len, text.splitlines())) <= 62
        assert text.count("x") == 150
        assert "…" not in text


class TestPaperTable:
    def test_without_records_nothing_was_run(self):
        text = paper_table(read_paper()[0], [])
        assert text.count("not run") == len(read_paper()[0].rows)
        assert "76.94 / 93.41" in text

    def test_other_scales_have_columns_of_their_own(self):
        name = "imagenet/sgd_100ep"
        records = [
            record(name, 60.0, scale="mini"),
            record(name, 62.0, scale="mini", seed=1),
            record(name, 76.4),
            record("imagenet/sgd_200ep", 33.0, scale="smoke", data="digits"),
            record("imagenet/other", 1.0, scale="mini", data="unrelated"),
        ]
        text = paper_table(read_paper()[0], records)
        assert "ours, mini: cifar10" in text
        assert "ours, smoke: digits" in text
        assert "unrelated" not in text
        assert cells(text, "table1/sgd-100")[1:] == [
            "76.38 / 93.08",
            "76.40 / 99.00 (n=1)",
            "61.00 ± 1.41 / 99.00 ± 0.00 (n=2)",
            "not run",
        ]
        assert cells(text, "table1/sgd-200")[2:] == ["not run", "not run", "33.00 / 99.00 (n=1)"]

    def test_cited_and_repeated_rows_are_marked(self):
        text = paper_table(read_paper()[1], [])
        assert "table2/you-8k (cited)" in text
        assert "see table3/novograd-8k" in text


def test_optimizers_have_one_order():
    numbers = {"a": {"SGD": 1.0, "AdamW": 2.0, "NovoGrad": 3.0}, "b": {"Adam": 4.0, "AdamW": 5.0}}
    head, rows = numbers_table(numbers)
    assert head == ["", "SGD", "Adam", "AdamW", "NovoGrad"]
    assert rows == [["a", "1", "", "2", "3"], ["b", "", "4", "5", ""]]


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("<script>", "&lt;script&gt;"),
        ("a|b", "a\\|b"),
        ("$\\frac{$", "\\$\\\\frac{\\$"),
        ("snake_case __init__ _x", "snake_case \\_\\_init\\_\\_ \\_x"),
        ("*a* `b` [c](d) ~e~", "\\*a\\* \\`b\\` \\[c\\](d) \\~e\\~"),
        ("# a", "\\# a"),
        ("- a", "\\- a"),
        ("1. a", "1\\. a"),
        ("-1.5 a", "-1.5 a"),
        ("1.5 a", "1.5 a"),
        ("a\n\nb", "a b"),
        ("&amp;", "&amp;amp;"),
    ],
)
def test_markdown_shows_texts_as_they_are(text, escaped):
    assert escape(text) == escaped
    assert escape(Markdown(text)) == text


def test_markdown_tables_keep_their_cells():
    text = markdown_table(["a|b", "c"], [["x\ny", Markdown("`p|q`")]])
    assert text == "| a\\|b | c |\n| --- | --- |\n| x y | `p\\|q` |"


def test_the_headline_s_numbers_have_spreads_and_leads():
    known = {"Adam": 50.04, "Adam ±": 0.66, "NovoGrad": 48.0, "NovoGrad ±": 1.0}
    head, rows = headline_numbers(
        {
            "one, BLEU": known | {"lead, %": -4.08, "low": -6.0, "high": -2.0},
            "other, perplexity": {"SGD": 9.96, "NovoGrad": 8.0},
        }
    )
    assert head == ["", "SGD", "Adam", "NovoGrad", "lead, %"]
    assert rows == [
        ["one, BLEU", "", "50.0 ± 0.7", "48.0 ± 1.0", "-4.1 [-6.0, -2.0]"],
        ["other, perplexity", "10.0", "", "8.0", "not run"],
    ]


def test_leads_stand_in_columns_of_their_passes():
    lead = {"difference, %": -1.94, "low": -2.8, "high": 1.08, "effect size": -5.6}
    head, rows = leads_by_passes(
        {"a, b, 10 passes": lead, "a, b, 1.5 passes": lead, "c, 100 passes": lead}
    )
    assert head == ["lead, %, after", "1.5 passes", "10 passes", "100 passes"]
    cell = "-1.9 [-2.8, +1.1]"
    assert rows == [["a, b", cell, cell, ""], ["c", "", "", cell]]
