"""The paper as data: every experiment is its row, every row has its experiment."""

from __future__ import annotations

from collections import Counter

import pytest
import yaml

from analysis.paper import PAPER, PaperProblem, Row, read_paper
from engine.config import read_config
from engine.plan import make_plan
from launch.compose import compose, options_of
from launch.run_spec import make_run_spec
from tasks.catalog import TASKS, task_class

ROWS = [row for table in read_paper() for row in table.rows]
RUN = [row for row in ROWS if row.experiment or row.rerun]
EPOCH = {"imagenet": 1_281_167}


@pytest.mark.parametrize("row", RUN, ids=lambda row: row.row)
def test_every_experiment_is_its_row(row: Row):
    experiment = str(row.experiment or row.rerun)
    config = read_config(compose([f"experiment={experiment}", "scale=paper"]))
    amount, unit = config.budget.split()
    found = {
        "optimizer": config.optimizer["name"],
        "lr": config.optimizer["lr"],
        "weight_decay": config.optimizer["weight_decay"],
        unit: float(amount),
        "batch": config.batch.global_size,
        "warmup": config.schedule.warmup,
        "dropout": config.model.get("dropout"),
    }
    if "segment" in config.data:
        found["sequences"] = config.batch.global_size // config.data["segment"]
    assert row.recipe == {name: found[name] for name in row.recipe}
    if "warmup" not in row.recipe and not row.why and not row.rerun:
        assert config.schedule.warmup == "0 steps"  # the paper says nothing of one


@pytest.mark.parametrize("row", RUN, ids=lambda row: row.row)
def test_runs_measure_what_the_row_claims(row: Row):
    (table,) = (t for t in read_paper() if row in t.rows)
    task = task_class(table.task)
    splits = {metric.split("/")[0] for metric in row.metrics}
    assert splits <= {*task.splits, *task.final_splits}


def test_every_experiment_but_variants_is_a_row():
    claimed = Counter(row.experiment or row.rerun for row in RUN)
    assert set(claimed.values()) == {1}
    experiments = {e for e in options_of("experiment") if "/variant/" not in e}
    assert experiments == set(claimed)


def test_rows_that_are_shown_again_agree():
    named = {row.row: row for row in ROWS}
    assert len(named) == len(ROWS)
    for row in ROWS:
        if row.same_as:
            other = named[row.same_as]
            assert row.metrics.items() <= other.metrics.items()
            assert row.printed.items() <= other.printed.items()


def test_tables_belong_to_tasks():
    assert {table.task for table in read_paper()} <= set(TASKS)
    assert [table.table for table in read_paper()] == sorted({t.table for t in read_paper()})


def test_steps_are_the_papers():
    """Whole batches of an epoch: 1,251, 156 and 39 steps."""
    for name, steps in {"1k": 112_590, "8k": 14_040, "32k": 3_510}.items():
        words = [f"experiment=imagenet/novograd_{name}_90ep", "scale=paper"]
        config = read_config(compose(words))
        plan = make_plan(config, "image", EPOCH["imagenet"] // config.batch.global_size, 8)
        assert (plan.steps, plan.micro) == (steps, 128)
        assert plan.accumulation * 8 * 128 == config.batch.global_size


def test_steps_of_table_5_are_the_papers():
    """9 updates an epoch with batches of 32K, says the paper."""
    found = {}
    for name in ("512", "4k", "8k", "16k", "32k"):
        words = [f"experiment=librispeech/novograd_{name}", "scale=paper", "hardware=dgx1"]
        plan = make_run_spec(words, need_data=False).plan
        found[name] = plan.steps_per_epoch, plan.steps, plan.warmup, plan.accumulation
    assert found == {
        "512": (550, 220_000, 0, 1),
        "4k": (69, 27_600, 1_380, 8),
        "8k": (35, 14_000, 700, 16),
        "16k": (18, 7_200, 360, 32),
        "32k": (9, 3_600, 288, 64),
    }


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"cited": "somebody"}, "needs one of experiment, cited and same_as"),
        ({"experiment": None}, "needs one of"),
        ({"used": {"lr": 1}}, "has no why"),
        ({"metrics": {"val/top9": 1.0}}, "no tolerance"),
        ({"metric": {}}, "unknown keys"),
    ],
)
def test_a_wrong_row_is_refused(tmp_path, change, complaint):
    raw = yaml.safe_load((PAPER / "table1.yaml").read_text())
    raw["rows"][0] |= change
    (tmp_path / "table1.yaml").write_text(yaml.safe_dump(raw))
    with pytest.raises(PaperProblem, match=complaint):
        read_paper(tmp_path)
