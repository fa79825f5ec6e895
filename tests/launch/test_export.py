from __future__ import annotations

import json
import pickletools
import shutil
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from safetensors.torch import load_file

from engine.loading import ModelProblem, load_trained
from engine.records import read_record
from scripts.evaluate import main as evaluate
from scripts.export import main
from scripts.predict import main as predict
from tests.launch.trained_models import TASKS, restored_threads, smoke_run, split_alone, state_of

VOCABULARIES = {
    "imagenet": "classes.json",
    "librispeech": "alphabet.json",
    "wmt14": "sentencepiece.model",
    "wikitext103": "words.json",
}


def exported(run: Path, folder: Path, *arguments: str) -> Path:
    with restored_threads():
        assert main([str(run), "--to", str(folder), *arguments]) == 0
    return folder


@pytest.mark.parametrize("run", TASKS, indirect=True)
def test_an_export_is_the_model(run: Path, tmp_path: Path):
    """It needs neither its run nor its data, and evaluates to the same numbers."""
    before, task = state_of(run), run.parent.name
    folder = exported(run, tmp_path / "export")
    names = {"model.safetensors", "config.json", "README.md", VOCABULARIES[task]}
    assert {file.name for file in folder.iterdir()} == names
    trained, source = load_trained(folder), load_trained(run)
    assert trained.sha256 == source.sha256
    assert trained.files == source.files
    assert load_file(folder / "model.safetensors").keys() == source.weights.keys()
    split, overrides = split_alone(run, tmp_path, task)
    output = tmp_path / "found.json"
    arguments = [str(folder), "--split", split, *overrides, "hardware.threads=1"]
    with restored_threads():
        assert evaluate([*arguments, "hardware.device=cpu", "--output", str(output)]) == 0
    final = read_record(run / "record.json").final
    expected = {name: value for name, value in final.items() if name.startswith(f"{split}/")}
    assert json.loads(output.read_text())["metrics"] == expected
    assert state_of(run) == before


@pytest.mark.parametrize("run", TASKS, indirect=True)
def test_nothing_in_an_export_is_a_pickle(run: Path, tmp_path: Path):
    for file in exported(run, tmp_path / "export").iterdir():
        content = file.read_bytes()
        assert not content.startswith((b"\x80", b"PK"))  # a pickle, torch's archive
        with pytest.raises(ValueError, match=r".*"):
            list(pickletools.genops(content))


@pytest.mark.parametrize("run", TASKS, indirect=True)
def test_the_card_has_the_hubs_metadata_and_where_numbers_come_from(run: Path, tmp_path: Path):
    folder, record = exported(run, tmp_path / "export"), read_record(run / "record.json")
    card = ModelCard.load(folder / "README.md")
    assert card.data.model_name == record.run_id
    results = card.data.eval_results
    assert results
    assert len({(r.dataset_split, r.metric_name) for r in results}) == len(results)
    for result in results:
        of_split = {
            n: v for n, v in record.final.items() if n.startswith(f"{result.dataset_split}/")
        }
        assert result.metric_value in of_split.values()
        assert result.dataset_name == record.data
    assert record.commit is None or record.commit[:12] in card.text
    assert "scale=smoke" in card.text
    assert load_trained(folder).sha256 in card.text


def test_the_best_checkpoint_has_its_own_numbers(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    run = smoke_run(tmp_path_factory, "wikitext103")
    folder = exported(run, tmp_path / "best", "--checkpoint", "best")
    config = json.loads((folder / "config.json").read_text())
    assert config["evaluations"][0]["metrics"] == read_record(run / "record.json").best
    averaged = exported(run, tmp_path / "mean", "--average", "2")
    head = yaml.safe_load((averaged / "README.md").read_text().split("---")[1])
    assert head["model-index"][0]["results"] == []
    assert "were not evaluated" in (averaged / "README.md").read_text()


@pytest.fixture
def export(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(smoke_run(tmp_path_factory, "wmt14"), tmp_path / "export")


@pytest.mark.parametrize("name", ["model.safetensors", "sentencepiece.model", "config.json"])
def test_a_damaged_export_is_refused(
    export: Path, name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    content = bytearray((export / name).read_bytes())
    place = content.index(b"vocabulary") + 14 if name == "config.json" else len(content) // 2
    for changed in (content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :], None):
        if changed is None:
            (export / name).unlink()
        else:
            (export / name).write_bytes(changed)
        with pytest.raises(ModelProblem, match=name):
            load_trained(export)
        assert predict([str(export)]) == 2
        said = capsys.readouterr().err
        assert name in said
        assert "Traceback" not in said


def test_bad_exports_leave_nothing(
    export: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    run = smoke_run(tmp_path_factory, "wmt14")
    before = state_of(export)
    assert main([str(run), "--to", str(export)]) == 2
    assert "exists and is not empty" in capsys.readouterr().err
    assert state_of(export) == before
    assert main([str(export), "--to", str(tmp_path / "copy")]) == 2
    assert "is an export already" in capsys.readouterr().err
    assert main([str(tmp_path), "--to", str(tmp_path / "copy")]) == 2
    assert "neither a run's folder" in capsys.readouterr().err

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main([str(run), "--to", str(tmp_path / "copy")]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_an_export_can_be_renamed_and_moved(export: Path, tmp_path: Path, capsys):
    shutil.move(export, tmp_path / "elsewhere")
    assert predict([str(tmp_path / "elsewhere"), "--checkpoint", "best"]) == 2
    assert "is an export, which has one set of weights" in capsys.readouterr().err
