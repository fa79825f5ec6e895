"""Comparing runs: the numbers are numpy's, and every refusal names what would be right."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest
import yaml
from PIL import Image

from engine import wandb_runs
from scripts.compare import main

STEPS = 20
TOP1 = ("--metric", "val/top1")


def config_of(experiment, seed, scale="mini", optimizer="novograd", lr=0.01, data="digits"):
    return {
        "experiment": experiment,
        "scale": scale,
        "seed": seed,
        "task": {"name": experiment.split("/")[0]},
        "data": {"name": data},
        "budget": "2 epochs",
        "batch": {"global_size": 64, "micro": 32},
        "optimizer": {"name": optimizer, "lr": lr},
        "tracking": {"project": "novograd", "entity": None},
    }


def top1_of(seed, lr):
    random = np.random.default_rng(seed)
    return 50 * lr + np.array([10.0, 20.0]) + random.normal(size=2)


def make_run(outputs, experiment, seed, status="finished", steps=STEPS, layers=None, **given):
    config = config_of(experiment, seed, **given)
    run_id = f"{experiment}-{given.get('lr', 0.01)}{given.get('scale', '')}-s{seed}"
    folder = outputs / run_id
    folder.mkdir(parents=True)
    (folder / "run.yaml").write_text(
        yaml.safe_dump({"run_id": run_id, "fingerprint": "f", "config": config})
    )
    (folder / "status.json").write_text(json.dumps({"status": status}))
    top1 = top1_of(seed, config["optimizer"]["lr"])
    lines = []
    for step in range(1, steps + 1):
        at = {"step": step, "epoch": step / 10, "units": step * 64, "wall_s": step * (1 + seed)}
        measured = {
            f"optimizer/{quantity}/{layer}": (1 + seed) * factor / step
            for layer, factor in (layers or {}).items()
            for quantity in ("gradient_norm", "update_ratio")
        }
        lines.append(at | {"train/loss": 3 / step + seed, "train/lr": 0.1} | measured)
        if step % 10 == 0:
            lines.append(at | {"val/top1": top1[step // 10 - 1], "val/top5": 90.0})
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder


@pytest.fixture
def outputs(tmp_path):
    folder = tmp_path / "outputs"
    for seed in range(3):
        make_run(folder, "imagenet/novograd_100ep", seed)
        make_run(folder, "imagenet/sgd_100ep", seed, optimizer="sgd", lr=0.4)
    return folder


def read_csv(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def compared(outputs, *arguments):
    assert main(["--outputs", str(outputs), *arguments]) == 0
    return outputs / "compare"


def refused(capsys, outputs, *arguments):
    assert main(["--outputs", str(outputs), *arguments]) == 2
    assert not (outputs / "compare").exists()
    said = capsys.readouterr()
    assert not said.out
    (line,) = said.err.splitlines()
    return line


SGD, NOVOGRAD = (0x00, 0x72, 0xB2), (0xB8, 0x57, 0x8F)  # the colours of optimizers in all charts


def colours_of(path):
    picture = np.asarray(Image.open(path).convert("RGB"))
    assert picture.shape[0] > 400
    return {tuple(colour) for colour in picture.reshape(-1, 3).tolist()}


class TestNumbers:
    def test_are_those_of_numpy(self, outputs, capsys):
        arguments = ["experiment=imagenet/*", "group_by=optimizer", *TOP1]
        folder = compared(outputs, *arguments)
        values = np.stack([top1_of(seed, 0.4) for seed in range(3)])
        rows = [
            row
            for row in read_csv(folder / "imagenet-scale-mini-digits-val-top1.csv")
            if row["group"] == "sgd"
        ]
        assert [float(row["x"]) for row in rows] == [1.0, 2.0]
        assert [float(row["mean"]) for row in rows] == values.mean(axis=0).tolist()
        assert [float(row["sd"]) for row in rows] == values.std(axis=0, ddof=1).tolist()
        assert {row["n"] for row in rows} == {"3"}
        final = values[:, -1]
        said = capsys.readouterr().out
        assert "val/top1 · imagenet, scale mini, digits" in said
        assert re.search(rf"sgd +3 +{final.mean():.4g} ± {final.std(ddof=1):.3g} ", said)
        assert re.search(r"sgd .* 2 +40 s", said), said  # the best at epoch 2; 20, 40 and 60 s

    def test_are_drawn_as_pictures_and_on_a_page(self, outputs):
        folder = compared(outputs)
        names = {path.name.removeprefix("imagenet-scale-mini-digits") for path in folder.iterdir()}
        assert names == {
            f"-{m}.{e}" for m in ("val-top1", "train-loss") for e in ("png", "csv")
        } | {".html"}
        for path in folder.glob("*.png"):
            assert {SGD, NOVOGRAD} <= colours_of(path)
        page = (folder / "imagenet-scale-mini-digits.html").read_text()
        assert page.count("<svg") == page.count("<table>") == 2
        assert "stroke: var(--line-0)" in page
        assert "prefers-color-scheme: dark" in page
        assert not re.search(r"(src|href)=.?http|<script|@import", page)

    def test_of_layers_are_drawn_for_each_group(self, tmp_path, capsys):
        for seed in range(2):
            layers = {"stem": 1e-2, "blocks.0": 1e-3}
            make_run(tmp_path, "imagenet/novograd_100ep", seed, layers=layers)
        make_run(tmp_path, "imagenet/sgd_100ep", 0, optimizer="sgd", layers={"stem": 1e-1})
        folder = compared(tmp_path)
        said = capsys.readouterr().out
        mean = np.mean([1 / step for step in range(1, STEPS + 1)])
        assert "which layers move?" in said
        assert re.search(rf"stem +{0.015 * mean:.3g} +{0.1 * mean:.3g}", said), said
        assert re.search(rf"blocks.0 +{0.0015 * mean:.3g} +–", said), said
        (table,) = folder.glob("*-layers.csv")
        rows = [r for r in read_csv(table) if r["layer"] == "stem" and r["n"] == "2"]
        assert len(rows) == 2 * STEPS
        assert float(rows[0]["mean"]) == pytest.approx(0.015, rel=1e-12)
        assert len(list(folder.glob("*-layers-*.png"))) == 2
        (page,) = folder.glob("*.html")
        assert page.read_text().count("<svg") == 4

    def test_along_wall_time_are_interpolated_but_not_extrapolated(self, outputs):
        folder = compared(outputs, "--axis", "wall_s", "--metric", "train/loss")
        rows = read_csv(folder / "imagenet-scale-mini-digits-train-loss.csv")
        xs = [float(row["x"]) for row in rows if "sgd" in row["group"]]
        assert (min(xs), max(xs)) == (3, 20)  # the slowest begins, the fastest ends

    def test_of_chosen_runs_and_keys(self, outputs, capsys):
        make_run(outputs, "imagenet/novograd_100ep", 5, lr=0.02)
        runs = ["imagenet/sgd_100ep-0.4-s0", str(outputs / "imagenet/novograd_100ep-0.02-s5")]
        folder = compared(outputs, *runs, runs[0], "--group-by", "optimizer.lr", *TOP1)
        rows = read_csv(folder / "imagenet-scale-mini-digits-val-top1.csv")
        assert {row["group"] for row in rows} == {"optimizer.lr=0.4", "optimizer.lr=0.02"}
        assert {(row["n"], row["sd"]) for row in rows} == {("1", "")}
        compared(outputs, "optimizer=novograd", *TOP1)
        said = capsys.readouterr().out
        assert "± is over 2 recipes, not over seeds alone" in said

    def test_of_unfinished_runs_are_marked_and_not_averaged(self, outputs, capsys):
        make_run(outputs, "imagenet/sgd_100ep", 7, "preempted", 12, optimizer="sgd", lr=0.4)
        make_run(outputs, "imagenet/sgd_100ep", 8, "running", 0, optimizer="sgd", lr=0.4)
        make_run(outputs, "imagenet/sgd_100ep", 9, "finished", 12, optimizer="sgd", lr=0.4)
        folder = compared(outputs, *TOP1)
        said = capsys.readouterr().out
        assert re.search(r"0\.4-s7 \(preempted at step 12\) +1 ", said)
        assert re.search(r"0\.4-s8 \(running at step 0\) +1 +– ", said)
        assert re.search(r"0\.4-s9 \(stopped at step 12\) +1 ", said)  # its budget is not spent
        assert "not included in any mean" in said
        rows = read_csv(folder / "imagenet-scale-mini-digits-val-top1.csv")
        assert {r["n"] for r in rows if r["group"] == "imagenet/sgd_100ep"} == {"3"}

    def test_are_shown_with_the_papers_number_only_at_its_scale(self, tmp_path):
        for scale in ("paper", "mini"):
            make_run(tmp_path / scale, "imagenet/novograd_100ep", 0, scale=scale)
            compared(tmp_path / scale, *TOP1)
        (paper,) = (tmp_path / "paper").rglob("*.html")
        (mini,) = (tmp_path / "mini").rglob("*.html")
        assert "imagenet/novograd_100ep, the paper: 76.94" in paper.read_text()
        assert "stroke-dasharray" in paper.read_text()
        assert "76.94" not in mini.read_text()


class TestRefusals:
    def test_of_mixed_scales_unless_one_is_chosen(self, outputs, capsys):
        make_run(outputs, "imagenet/sgd_100ep", 0, scale="paper")
        line = refused(capsys, outputs)
        assert "6 of mini, 1 of paper" in line
        assert "--scale" in line
        compared(outputs, "--scale", "mini", *TOP1)

    def test_of_mixed_tasks_and_data(self, outputs, capsys):
        make_run(outputs, "wmt14/sgd", 0)
        assert "different task" in refused(capsys, outputs)
        make_run(outputs, "imagenet/adamw", 0, data="cifar10")
        assert "1 of cifar10, 6 of digits" in refused(capsys, outputs, "task=imagenet")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["imagenet/sgd_100ep-0.4-s"], "did you mean 'imagenet/sgd_100ep-0.4-s"),
            (["optimizer=adam"], "the values of optimizer are novograd, sgd"),
            (["optimiser=sgd"], "did you mean 'optimizer'"),
            (["--group-by", "optimizer.Lr"], "did you mean 'optimizer.lr'"),
            (["--metric", "val/top2"], "did you mean 'val/top"),
        ],
    )
    def test_name_what_would_be_right(self, outputs, capsys, arguments, message):
        assert message in refused(capsys, outputs, *arguments)

    def test_of_damaged_runs_name_the_file(self, outputs, capsys):
        folder = outputs / "imagenet/sgd_100ep-0.4-s0"
        rows = (folder / "metrics.jsonl").read_text()
        (folder / "metrics.jsonl").write_text("what?\n" + rows)
        assert "metrics.jsonl: line 1 is not a row" in refused(capsys, outputs)
        (folder / "run.yaml").write_text("what?")
        assert "run.yaml is not a run file" in refused(capsys, outputs)

    def test_of_folders_without_runs_and_unwritable_ones(self, outputs, tmp_path, capsys):
        assert "no runs below" in refused(capsys, tmp_path / "nowhere")
        (tmp_path / "file").touch()
        assert "file" in refused(capsys, outputs, "--out", str(tmp_path / "file"))

    def test_of_wrong_arguments(self, outputs, capsys):
        project = ["--from-wandb", "project"]
        for arguments in (["--axis", "time"], project, ["--from-wandb", "a/b", "run"]):
            with pytest.raises(SystemExit) as ended:
                main(["--outputs", str(outputs), *arguments])
            assert ended.value.code == 2


class TestWandb:
    def test_runs_are_compared_as_local_ones(self, outputs, monkeypatch):
        def project(name):
            assert name == "me/novograd"
            foreign = wandb_runs.WandbRun("x", "x", {"lr": 1}, "finished", list)
            return [foreign, *(self.mirrored(outputs, seed) for seed in range(3))]

        monkeypatch.setattr(wandb_runs, "read_project", project)
        local = (
            compared(outputs, "optimizer=sgd", *TOP1) / "imagenet-scale-mini-digits-val-top1.csv"
        )
        remote = outputs.parent / "remote"
        compared(outputs, "--from-wandb", "me/novograd", "--out", str(remote), *TOP1)
        assert (remote / local.name).read_text() == local.read_text()

    def mirrored(self, outputs, seed):
        rows = (outputs / f"imagenet/sgd_100ep-0.4-s{seed}" / "metrics.jsonl").read_text()
        read = [json.loads(line) for line in rows.splitlines()]
        config = config_of("imagenet/sgd_100ep", seed, optimizer="sgd", lr=0.4)
        return wandb_runs.WandbRun(
            f"i{seed}", f"imagenet/sgd_100ep-0.4-s{seed}", config, "finished", lambda: read + read
        )

    def test_reports_have_the_same_runs_and_need_a_login(self, outputs, monkeypatch, capsys):
        built = []

        def save(report):
            built.append(report)
            raise wandb_runs.WandbProblem("W&B: no key is configured")

        monkeypatch.setattr(wandb_runs, "save_report", save)
        arguments = ["group_by=optimizer", "seed=0", "--wandb-report", *TOP1]
        assert main(["--outputs", str(outputs), *arguments]) == 2
        assert "no key" in capsys.readouterr().err
        (report,) = built
        (runs,) = report.blocks[0].runsets
        assert runs.groupby == ["config.optimizer.name"]
        ids = ("imagenet-novograd_100ep-0.01-s0", "imagenet-sgd_100ep-0.4-s0")
        assert all(name in runs.filters for name in ids)
        assert [panel.y for panel in report.blocks[0].panels] == [["val/top1"]]
