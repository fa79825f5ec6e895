from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.distributed import Group
from engine.finite import NonFinite
from engine.loading import load_trained, weights_sha256
from engine.records import read_record
from launch import evaluate
from scripts.evaluate import main
from tests.launch.trained_models import (
    TASKS,
    overrides,
    restored_threads,
    smoke_run,
    split_alone,
    state_of,
    train,
    work_in_forks,
)

ROOT = Path(__file__).parents[2]


def evaluated(output: Path, *arguments: object) -> dict[str, Any]:
    with restored_threads():
        assert main([*map(str, arguments), "--output", str(output)]) == 0
    found: dict[str, Any] = json.loads(output.read_text())
    return found


@pytest.mark.parametrize("run", TASKS, indirect=True)
def test_an_evaluation_has_the_numbers_of_the_run_on_one_and_two_processes(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """To the bit, with the same predictions, and without touching the run."""
    before, final = state_of(run), read_record(run / "record.json").final
    one = evaluated(tmp_path / "one.json", run, "--predictions", 50)
    assert one["metrics"] == final
    monkeypatch.setattr(evaluate, "start_workers", work_in_forks)
    two = evaluated(tmp_path / "two.json", run, "--predictions", 50, "hardware.processes=2")
    assert two["processes"] == 2
    assert two["metrics"] == final
    for split in one["protocols"]:
        own = (run / f"predictions-{split}.jsonl").read_bytes()
        assert own
        assert (tmp_path / f"one-{split}.jsonl").read_bytes() == own
        assert (tmp_path / f"two-{split}.jsonl").read_bytes() == own
    assert state_of(run) == before


@pytest.mark.parametrize("run", ["imagenet"], indirect=True)
def test_a_problem_that_one_of_several_processes_finds(run: Path, tmp_path, monkeypatch, capfd):
    def fail(_: object, __: object, ___: object, group: Group) -> None:
        if not group.is_first:
            raise NonFinite("val/loss is nan")
        group.wait_for_all()

    monkeypatch.setattr(evaluate, "start_workers", work_in_forks)
    monkeypatch.setattr(evaluate, "evaluate_splits", fail)
    output = tmp_path / "found.json"
    with restored_threads():
        assert main([str(run), "--output", str(output), "hardware.processes=2"]) == 2
    assert "val/loss is nan" in capfd.readouterr().err
    assert not output.exists()


@pytest.mark.slow  # four interpreters that import torch
@pytest.mark.parametrize("run", ["librispeech"], indirect=True)
def test_the_command_on_two_processes(run: Path):
    """Torchrun and all; the file is beside the run."""
    before = state_of(run)
    command = [sys.executable, "-m", "scripts.evaluate", str(run), "hardware.processes=2"]
    done = subprocess.run(
        [*command, "--split", "dev-clean", "--checkpoint", "best"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    written = json.loads((run / "evaluation-best-dev-clean.json").read_text())
    best = read_record(run / "record.json").best
    assert written["metrics"] == {k: v for k, v in best.items() if k.startswith("dev-clean/")}
    assert f"dev-clean: wer {best['dev-clean/wer']:.6g}" in done.stdout
    assert written["protocols"]["dev-clean"] in done.stdout
    assert state_of(run) == before


@pytest.mark.parametrize("run", TASKS, indirect=True)
def test_a_split_in_another_folder_needs_no_training_data(run: Path, tmp_path: Path):
    """The labels and the vocabulary are the model's, not the folder's."""
    split, elsewhere = split_alone(run, tmp_path, run.parent.name)
    found = evaluated(tmp_path / "found.json", run, "--split", split, *elsewhere)["metrics"]
    final = read_record(run / "record.json").final
    assert found == {name: v for name, v in final.items() if name.startswith(f"{split}/")}


@pytest.mark.parametrize("run", ["imagenet"], indirect=True)
def test_the_mean_of_the_last_checkpoints(run: Path, tmp_path: Path):
    """In float64, of weights and statistics; counters are the last one's."""
    last, before = sorted((run / "checkpoints").glob("step-*.pt"), reverse=True)
    a, b = (torch.load(p, weights_only=True)["model"] for p in (last, before))
    expected = {
        name: ((a[name].double() + b[name].double()) / 2).to(a[name].dtype)
        if a[name].is_floating_point()
        else a[name]
        for name in a
    }
    mean = load_trained(run, average=2)
    assert mean.label == "average-2"
    assert mean.sha256 == weights_sha256(expected) != load_trained(run).sha256
    assert evaluated(tmp_path / "mean.json", run, "--average", 2)["weights"]["from"] == "average-2"


@pytest.mark.parametrize("run", ["wikitext103"], indirect=True)
def test_double_precision_and_old_runs(run: Path, tmp_path: Path):
    """Weights are never rounded; a run that did not keep its vocabulary finds it in its data."""
    arguments = [*overrides(run.parents[2], "wikitext103"), f"paths.outputs={tmp_path}"]
    found = train([*arguments, "hardware.precision=fp64", "budget='2 steps'"])
    shutil.rmtree(found / "model_files")
    metrics = evaluated(tmp_path / "found.json", found)["metrics"]
    assert metrics == read_record(found / "record.json").final


def test_decoding_and_protocol_are_overrides(tmp_path_factory: pytest.TempPathFactory, tmp_path):
    wmt = smoke_run(tmp_path_factory, "wmt14")
    found = evaluated(
        tmp_path / "a.json", wmt, "--split", "valid", "data.beam=1", "data.length_penalty=0.3"
    )
    assert found["protocols"]["valid"].endswith("beam 1, length penalty 0.3")
    assert found["overrides"] == ["data.beam=1", "data.length_penalty=0.3"]
    wiki = smoke_run(tmp_path_factory, "wikitext103")
    options = ["data.eval_segment=64", "data.eval_memory=640", "data.eval_clamp=400"]
    options.append("data.eval_same_length=true")
    found = evaluated(tmp_path / "b.json", wiki, "--split", "valid", *options)["metrics"]
    final = read_record(wiki / "record.json").final
    assert found == {f"valid/{n}": final[f"valid_64/{n}"] for n in ("loss", "ppl")}
    assert found != {name: final[name] for name in found}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}", "--split", "vall"], "--split vall: no such split; did you mean 'val'?"),
        (["{run}", "--checkpoint", "7"], "no checkpoint '7'; there are last, best and steps"),
        (["{run}", "--average", "9"], "not 9; a run keeps more with checkpoint.keep=9"),
        (["{run}", "--average", "0"], "--average must be at least 1"),
        (["{run}", "model.width=4"], "model.width belongs to the training"),
        (["{run}", "data.beem=4"], "data.beem is not a known key"),
        (["{run}", "data.folder=nowhere", "data.make=null"], "nowhere/val: no such folder"),
        (["{run}", "nonsense"], "belongs to the training"),
        (["{run}", "--output", "{tmp}/no/where.json"], "is not a folder"),
        (["{tmp}/nothing"], "nothing: no such file or folder"),
        (["{tmp}"], "neither a run's folder"),
        (["{tmp}/empty"], "has no checkpoints"),
        (["{tmp}/damaged"], "step-00000046.pt: is damaged: its SHA-256"),
        (["{tmp}/truncated"], "step-00000046.pt: is damaged: it has"),
        (["{tmp}/other"], "is a checkpoint of another run (task wikitext103"),
        (["{tmp}/text.pt"], "its run is not there"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
):
    run = smoke_run(tmp_path_factory, "imagenet")
    for name in ("empty", "damaged", "truncated", "other"):
        if arguments[0].endswith(name):
            spoil(run, tmp_path / name, name, tmp_path_factory)
    (tmp_path / "text.pt").write_text("no checkpoint")
    before, here = state_of(run), sorted(tmp_path.rglob("*"))
    given = [argument.format(run=run, tmp=tmp_path) for argument in arguments]
    with restored_threads():
        assert main(given) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert state_of(run) == before
    assert sorted(tmp_path.rglob("*")) == here


def spoil(run: Path, copy: Path, how: str, factory: pytest.TempPathFactory) -> None:
    """A copy of a run with something wrong with it."""
    shutil.copytree(run, copy)
    newest = max((copy / "checkpoints").glob("step-*.pt"))
    if how == "empty":
        shutil.rmtree(copy / "checkpoints")
    elif how == "other":
        stolen = max((smoke_run(factory, "wikitext103") / "checkpoints").glob("step-*.pt"))
        for suffix in (".pt", ".json"):
            shutil.copy(stolen.with_suffix(suffix), newest.with_suffix(suffix))
    else:
        content = bytearray(newest.read_bytes())
        content[len(content) // 2] ^= 1
        newest.write_bytes(content if how == "damaged" else content[:-1])
