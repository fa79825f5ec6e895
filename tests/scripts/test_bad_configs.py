"""Bad configurations: all problems in one message, status 2, no traceback, nothing written."""

from __future__ import annotations

import pytest

from engine.config import ConfigProblem
from scripts import launch
from tasks.base import DataProblem

GOOD = ["experiment=imagenet/novograd_100ep", "scale=smoke", "hardware=cpu"]

# (words added to a good command line, what the message must say)
CASES: list[tuple[list[str], list[str]]] = [
    (["optimizer.lrr=0.1"], ["optimizer", "no option 'lrr'", "did you mean 'lr'"]),
    (["+optimizer.learning_rate=0.1"], ["no option 'learning_rate'"]),
    (["++batch.gobal_size=64"], ["batch.gobal_size is not a known key", "'global_size'"]),
    (["hardwar.precision=fp32"], ["hardwar is not a known key", "did you mean 'hardware'"]),
    (["+foo=1"], ["foo is not a known key"]),
    (["model.widht=8"], ["model.widht is not a known key", "did you mean 'width'"]),
    (["+data.size=3"], ["data.size is not a known key"]),
    (["optimizer.lr=nan"], ["lr", "nan"]),
    (["optimizer.lr=inf"], ["lr", "inf"]),
    (["optimizer.lr=-0.1"], ["lr", "-0.1"]),
    (["optimizer.lr=fast"], ["lr", "'fast'"]),
    (["~optimizer.lr"], ["needs a learning rate"]),
    (["optimizer.betas=[0.9,1.5]"], ["betas[1]", "[0, 1)"]),
    (["optimizer.decay=weights"], ["decay must be one of"]),
    (["optimizer.name=novogard"], ["unknown optimizer 'novogard'", "novograd"]),
    (["optimizer=lamb"], ["optimizer=lamb does not exist"]),
    (["experiment=imagenet/novograd_100epochs"], ["does not exist", "novograd_100ep"]),
    (["scale=tiny"], ["scale=tiny does not exist", "mini"]),
    (["batch.global_size=100"], ["100 = 3 × 32 + 4"]),
    (["batch.global_size=96", "hardware.processes=2"], ["do not divide among 2", "3 = 1 × 2 + 1"]),
    (["batch.global_size=-64"], ["batch.global_size must be finite and at least 1, not -64"]),
    (["batch.micro=0"], ["batch.micro must be", "at least 1"]),
    (["batch.global_size=100000"], ["more than one epoch has"]),
    (["batch.global_size=many"], ["batch.global_size must be an integer, not 'many'"]),
    (["budget=100"], ["budget must be a text, not 100"]),
    (["budget='ten epochs'"], ["budget must be a duration", "'ten epochs'"]),
    (["budget='5 %'"], ["percentage of itself"]),
    (["budget='3 tokens'"], ["budget must be a duration", "images"]),
    (["schedule.warmup='90 epochs'"], ["warmup must be at least 0 and less than total"]),
    (["schedule.shape=cosin"], ["shape must be one of"]),
    (["schedule.power=two"], ["schedule.power must be a number, not 'two'"]),
    (["gradient.clip_norm=0"], ["gradient.clip_norm must be finite and more than 0"]),
    (["gradient.larc={trust: 0.001, mood: clip}"], ["gradient", "mood"]),
    (["decay.apply_to=some"], ["decay.apply_to must be one of all, matrices"]),
    (["hardware.precision=fp8"], ["hardware.precision must be one of fp32, bf16, fp16, fp64"]),
    (["hardware.precision=fp16"], ["fp16 needs a GPU"]),
    (["hardware.device=cuda"], ["no GPU is visible"]),
    (["hardware.processes=few"], ["hardware.processes must be a number or 'auto'"]),
    (["hardware.compile=1"], ["hardware.compile must be true or false, not 1"]),
    (["seed=-1"], ["seed must be finite and at least 0"]),
    (["seed=1.5"], ["seed must be an integer, not 1.5"]),
    (["model.classes=9"], ["10", "9"]),
    (["scale=paper"], ["imagenet"]),
    (["optimizer.lr"], ["can't be read", "key=value"]),
    (["tracking.wandb=sometimes"], ["tracking.wandb must be one of"]),
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Data and outputs in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("words", "wanted"), CASES, ids=lambda value: " ".join(value)[:40])
def test_bad_configuration(words, wanted, tmp_path, capsys):
    replaced = {word.partition("=")[0] for word in words}
    command = [word for word in GOOD if word.partition("=")[0] not in replaced] + words
    assert launch.main(command) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    for text in wanted:
        assert text in message, message
    assert not (tmp_path / "outputs").exists()


def test_without_an_experiment_the_message_lists_them(capsys):
    assert launch.main(["scale=smoke"]) == 2
    assert "imagenet/novograd_100ep" in capsys.readouterr().err


def test_all_problems_come_at_once(capsys):
    words = ["seed=x", "batch.micro=y", "hardware.precision=fp8", "+bar=1", "hardwear.x=1"]
    assert launch.main([*GOOD, *words]) == 2
    message = capsys.readouterr().err
    for name in ("seed", "batch.micro", "bar", "hardwear"):
        assert name in message
    assert message.startswith("4 problems") or message.startswith("5 problems")


def test_good_ones_are_prepared():
    prepared = launch.prepare(GOOD)
    assert prepared.plan.accumulation == 2
    assert prepared.run_id.startswith("imagenet/novograd_100ep-")


def test_the_fingerprint_is_that_of_the_science():
    first = launch.prepare(GOOD).fingerprint
    assert launch.prepare(
        [*GOOD, "hardware.processes=2", "tracking.wandb=offline"]
    ).fingerprint == (first)
    assert launch.prepare([*GOOD, "optimizer.lr=0.1"]).fingerprint != first


def test_problems_are_exceptions_with_lists():
    with pytest.raises(ConfigProblem) as caught:
        launch.prepare([*GOOD, "seed=x"])
    assert len(caught.value.problems) == 1
    assert issubclass(DataProblem, Exception)
