from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile  # type: ignore[import-untyped]

from engine.predictions import predictions_file, read_predictions
from engine.records import read_run_file
from launch.experiment_jobs import show_examples
from scripts.evaluate import main as evaluate
from scripts.predict import main
from tests.launch.trained_models import TASKS, restored_threads, smoke_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def predicted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The command: exit status, lines of the standard output, the standard error."""

    def predicted(*arguments: object, stdin: str = "") -> tuple[int, list[str], str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with restored_threads():
            status = main([*map(str, arguments)])
        said = capsys.readouterr()
        return status, said.out.splitlines(), said.err

    return predicted


def data_of(run: Path) -> Path:
    config = read_run_file(run).config
    return Path(config["paths"]["data"]) / str(config["data"]["folder"])


def kept(run: Path, split: str) -> list[dict[str, Any]]:
    return read_predictions(predictions_file(run, split))


@pytest.mark.parametrize("run", ["imagenet"], indirect=True)
def test_images_are_classified_as_in_the_evaluation(run: Path, predicted):
    rows = kept(run, "val")[:40:8]
    files = [data_of(run) / row["file"] for row in rows]
    status, lines, _ = predicted(run, *files, "--json", "--batch", 2)
    assert status == 0
    found = [json.loads(line) for line in lines]
    assert [one["name"] for one in found] == [str(file) for file in files]
    for one, row in zip(found, rows, strict=True):
        assert one["hypothesis"] == row["hypothesis"]
        assert [c["class"] for c in one["top5"]] == [c["class"] for c in row["top5"]]
    _, (line,), _ = predicted(run, files[0])
    assert line.count("%") == 5
    assert line.split(" % ")[1].startswith(found[0]["hypothesis"])


@pytest.mark.parametrize("run", ["librispeech"], indirect=True)
def test_sounds_of_any_rate_are_transcribed(run: Path, predicted, tmp_path: Path):
    rows = kept(run, "dev-clean")[:3]
    files = [data_of(run) / row["file"] for row in rows]
    status, lines, _ = predicted(run, *files)
    assert status == 0
    assert lines == [f"{f}: {row['hypothesis']}" for f, row in zip(files, rows, strict=True)]
    sound, rate = soundfile.read(files[0])
    soundfile.write(tmp_path / "stereo.wav", np.stack([sound, sound], 1), rate)
    assert predicted(run, tmp_path / "stereo.wav")[1] == [rows[0]["hypothesis"]]
    soundfile.write(tmp_path / "high.wav", np.repeat(sound, 3), 3 * rate)
    assert predicted(run, tmp_path / "high.wav")[0] == 0


@pytest.mark.parametrize("run", ["wmt14"], indirect=True)
def test_lines_are_translated_as_in_the_evaluation(run: Path, predicted, tmp_path: Path):
    rows = kept(run, "valid")[:4]
    text = "".join(f"{row['input']}\n" for row in rows)
    expected = [row["hypothesis"] for row in rows]
    assert predicted(run, stdin=text)[:2] == (0, expected)
    (tmp_path / "lines.en").write_text(text)
    assert predicted(run, tmp_path / "lines.en", "--batch", 3)[:2] == (0, expected)
    assert predicted(run, stdin="\n")[:2] == (0, [""])  # an empty line stays one
    short = predicted(run, "data.longest_translation=5", stdin=text)[1]
    assert all(len(line) < len(other) for line, other in zip(short, expected, strict=True))


@pytest.mark.parametrize("run", ["wikitext103"], indirect=True)
def test_a_text_is_continued(run: Path, predicted):
    text = "w1 w2 w3"

    def continued(*options: str) -> str:
        status, (line,), _ = predicted(run, "words=12", *options, stdin=text)
        assert status == 0
        assert len(line.split()) == 12
        return str(line)

    assert continued("seed=1") == continued("seed=1") != continued("seed=2")
    likeliest = continued("temperature=0")
    assert continued("top_k=1", "seed=3") == likeliest
    assert continued("top_p=0.000001", "temperature=0.5") == likeliest


@pytest.mark.parametrize("run", ["wikitext103"], indirect=True)
def test_the_perplexity_of_a_text_is_that_of_an_evaluation(run: Path, predicted, tmp_path: Path):
    """Of the same words in one column; an evaluation does not predict a text's first word."""
    split = (data_of(run) / "wiki.test.tokens").read_text()
    folder = tmp_path / "after-a-line"
    folder.mkdir()
    (folder / "wiki.test.tokens").write_text("\n" + split)  # <eos> comes first
    overrides = [f"paths.data={tmp_path}", f"data.folder={folder.name}", "data.make=null"]
    output = tmp_path / "found.json"
    with restored_threads():
        evaluate(
            [
                str(run),
                "--split",
                "test",
                *overrides,
                "data.eval_columns=1",
                "--output",
                str(output),
            ]
        )
    expected = json.loads(output.read_text())["metrics"]["test/ppl"]
    status, (line,), _ = predicted(run, "score=true", "tokenized=true", "--json", stdin=split)
    assert status == 0
    assert json.loads(line)["ppl"] == expected


def test_each_translation_is_there_before_the_next_line_until_the_reader_leaves(
    tmp_path_factory: pytest.TempPathFactory,
):
    run = smoke_run(tmp_path_factory, "wmt14")
    first, second = kept(run, "valid")[:2]
    command = [sys.executable, "-m", "scripts.predict", str(run)]
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for row in (first, second):
            process.stdin.write(f"{row['input']}\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{row['hypothesis']}\n"
        process.stdout.close()  # the reader has seen enough: no further lines are waited for
        process.stdin.write(f"{first['input']}\n")
        process.stdin.flush()
        assert process.wait() == 0


def make_bad_files(folder: Path) -> None:
    (folder / "text.jpeg").write_text("no image")
    (folder / "text.wav").write_text("no sound")
    soundfile.write(folder / "empty.wav", np.zeros(0), 16000)
    soundfile.write(folder / "short.wav", np.zeros(100), 16000)
    (folder / "latin1.en").write_bytes("für".encode("latin-1"))
    (folder / "nothing.txt").write_text("")


@pytest.mark.parametrize(
    ("task", "arguments", "stdin", "message"),
    [
        ("imagenet", ["{tmp}/text.jpeg"], "", "text.jpeg: no image that can be read"),
        ("imagenet", ["{tmp}/none.png"], "", "none.png: no such file"),
        ("imagenet", [], "", "no image files were given"),
        ("imagenet", ["temperature=1"], "", "temperature is not a known key"),
        ("librispeech", ["{tmp}/text.wav"], "", "text.wav: no sound that can be read"),
        ("librispeech", ["{tmp}/empty.wav"], "", "empty.wav: the sound lasts 0 s"),
        ("librispeech", ["{tmp}/short.wav"], "", "lasts 0.0063 s; at least 0.016 s"),
        ("wmt14", [], "", "the standard input: is empty"),
        ("wmt14", [], "字", "the standard input, line 1: the vocabulary has no '字'"),
        ("wmt14", ["{tmp}/latin1.en"], "", "latin1.en, line 1: is not UTF-8"),
        ("wmt14", ["unknown=ignore"], "a", "must be one of ('refuse', 'replace')"),
        ("wmt14", ["--batch", "0"], "a", "--batch must be at least 1"),
        ("wikitext103", [], "", "the standard input: is empty"),
        ("wikitext103", ["{tmp}/nothing.txt"], "", "nothing.txt: is empty"),
        ("wikitext103", [], "strange", "the vocabulary has no 'strange', and no <unk>"),
        ("wikitext103", ["top_k=0"], "w1", "top_k must be at least 1, not 0"),
        ("wikitext103", ["temperature=-1"], "w1", "temperature must be at least 0"),
        ("wikitext103", ["words=many"], "w1", "words must be an integer, not 'many'"),
    ],
)
def test_bad_input_is_named(
    task: str,
    arguments: list[str],
    stdin: str,
    message: str,
    predicted,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
):
    run = smoke_run(tmp_path_factory, task)
    make_bad_files(tmp_path)
    given = [argument.format(tmp=tmp_path) for argument in arguments]
    status, lines, said = predicted(run, *given, stdin=stdin)
    assert status == 2
    assert message in said
    assert "Traceback" not in said
    assert not any(lines)


def test_good_files_are_predicted_beside_bad_ones(
    predicted, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    make_bad_files(tmp_path)
    images = smoke_run(tmp_path_factory, "imagenet")
    good = data_of(images) / kept(images, "val")[0]["file"]
    status, lines, said = predicted(images, tmp_path / "text.jpeg", good, tmp_path / "none.png")
    assert status == 1
    assert len(lines) == 1
    assert len(said.splitlines()) == 2
    text = smoke_run(tmp_path_factory, "wmt14")
    row = kept(text, "valid")[0]
    status, lines, said = predicted(text, stdin=f"字\n{row['input']}\n")
    assert (status, lines) == (1, ["", row["hypothesis"]])  # lines correspond
    status, lines, said = predicted(text, "unknown=replace", stdin="字\n")
    assert (status, said) == (0, "")


def test_the_examples_of_a_demonstration(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path):
    runs = [smoke_run(tmp_path_factory, task) for task in TASKS]
    shown = show_examples(runs)
    for run, block in zip(runs, shown.split("\n\n"), strict=True):
        assert block.startswith(read_run_file(run).run_id)
        assert [line.split()[0] for line in block.splitlines()[1:]] == [
            "input",
            "reference",
            "prediction",
        ]
