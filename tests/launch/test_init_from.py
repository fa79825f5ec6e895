from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.config import ConfigProblem
from engine.loading import load_trained
from engine.records import read_record
from launch.run_spec import make_run_spec
from scripts.export import main as export
from tasks.wmt14.corpus import Corpus
from tasks.wmt14.units import Units
from tests.launch.trained_models import overrides, restored_threads, smoke_run, train


def base_of(run: Path) -> Path:
    return run.parents[2]


def checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*.pt"))


@pytest.mark.parametrize("run", ["wikitext103"], indirect=True)
def test_a_run_begins_with_the_weights_of_another(run: Path, tmp_path: Path):
    """Trained with a learning rate of 0 they are still the same at its end, to the bit."""
    source = load_trained(run)
    arguments = [*overrides(base_of(run), "wikitext103"), f"paths.outputs={tmp_path}"]
    arguments += ["optimizer.lr=0", "budget='2 steps'", f"init_from={checkpoint(run)}"]
    found = train(arguments)
    assert load_trained(found).sha256 == source.sha256
    record = read_record(found / "record.json")
    origin = {"run_id": source.name, "step": source.step, "sha256": source.sha256}
    assert record.environment["initial_model"] == origin
    assert record.config["init_sha256"] == source.sha256
    assert str(base_of(run)) not in json.dumps(record.config)


@pytest.mark.parametrize("run", ["imagenet"], indirect=True)
def test_the_weights_are_part_of_the_recipe_and_their_place_is_not(run: Path, tmp_path: Path):
    arguments = overrides(base_of(run), "imagenet")
    plain = make_run_spec(arguments).fingerprint
    assert plain == run.name.split("-")[1]
    assert make_run_spec([*arguments, "init_from=null"]).fingerprint == plain
    with restored_threads():
        assert export([str(run), "--to", str(tmp_path / "export")]) == 0
    started = [
        make_run_spec([*arguments, f"init_from={path}"]).fingerprint
        for path in (tmp_path / "export", checkpoint(run))
    ]
    assert started[0] == started[1] != plain
    best = make_run_spec([*arguments, f"init_from={min((run / 'checkpoints').glob('step-*.pt'))}"])
    assert best.fingerprint not in (plain, *started)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["init_from={run}"], "is a run; name one of its checkpoints"),
        (["init_from={tmp}/nothing"], "no such file or folder"),
        (["init_from={tmp}"], "neither a run's folder"),
        (["init_from={other}"], "is a model of librispeech, and the run of imagenet"),
        (["init_from={checkpoint}", "model.width=16"], "weights do not fit the model: of another"),
        (["init_from={checkpoint}", "model.stages=[1,2]"], "do not fit the model: missing: "),
        (["init_from={checkpoint}", "init_gain=2"], "with init_from it must be 1"),
        (["init_from={checkpoint}", "init_sha256=abc"], "not init_sha256=abc"),
        (["init_sha256=abc"], "init_from's weights, which is missing"),
    ],
)
def test_what_does_not_fit_is_refused(
    extra: list[str], message: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    run = smoke_run(tmp_path_factory, "imagenet")
    names = {
        "run": run,
        "tmp": tmp_path,
        "checkpoint": checkpoint(run),
        "other": checkpoint(smoke_run(tmp_path_factory, "librispeech")),
    }
    given = [text.format(**names) for text in extra]
    with pytest.raises(ConfigProblem) as problem:
        make_run_spec([*overrides(base_of(run), "imagenet"), *given])
    assert str(problem.value).count(message) == 1


@pytest.mark.parametrize("run", ["wmt14"], indirect=True)
def test_other_data_is_read_with_the_models_vocabulary(run: Path, tmp_path: Path):
    folder = tmp_path / "other"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        for language, text in (("en", "the other text"), ("de", "ein anderer Text")):
            lines = [f"{text} {number}" for number in range(300)]
            (folder / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    given = [f"paths.data={tmp_path}", "data.folder=other", "data.make=null"]
    arguments = [*overrides(base_of(run), "wmt14"), *given]
    source = load_trained(run).files["sentencepiece.model"]
    task = make_run_spec([*arguments, f"init_from={checkpoint(run)}"]).task
    assert task.units.model == source
    corpus = Corpus(folder, 96, units=Units(source))
    (line,) = Units(source).encode(["the other text 0"])
    assert corpus.train.source(0).tolist()[1:-1] == line
