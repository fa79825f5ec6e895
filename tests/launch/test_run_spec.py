"""Run specs; bad configurations: all problems in one message, status 2, nothing written."""

from __future__ import annotations

import pytest

from engine.config import ConfigProblem
from launch.run_spec import make_run_spec
from scripts import launch
from tasks.base import DataProblem

GOOD = ["experiment=imagenet/novograd_100ep", "scale=smoke", "hardware=cpu"]

# (overrides added to a good command line, parts of the message)
CASES: list[tuple[list[str], list[str]]] = [
    (["optimizer.lrr=0.1"], ["optimizer.lrr is not an option of novograd", "did you mean 'lr'"]),
    (["+optimizer.learning_rate=0.1"], ["optimizer.learning_rate is not an option of novograd"]),
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
    (
        ["optimizer.name=novogard"],
        ["optimizer.name=novogard does not exist"],
    ),
    (["optimizer=shampoo"], ["optimizer=shampoo does not exist"]),
    (["experiment=imagenet/novograd_100epochs"], ["does not exist", "novograd_100ep"]),
    (["scale=tiny"], ["scale=tiny does not exist", "mini"]),
    (["batch.global_size=100"], ["100 = 3 × 32 + 4"]),
    (["batch.global_size=96", "hardware.processes=2"], ["do not divide among 2", "3 = 1 × 2 + 1"]),
    (["batch.global_size=-64"], ["batch.global_size must be at least 1, not -64"]),
    (["batch.micro=0"], ["batch.micro must be", "at least 1"]),
    (["batch.global_size=100000"], ["more than one epoch has"]),
    (["batch.micro=nan"], ["batch.micro must be an integer, not nan"]),
    (["batch.global_size=many"], ["batch.global_size must be an integer, not 'many'"]),
    (["budget=100"], ["budget must be a text, not 100"]),
    (["budget='ten epochs'"], ["budget must be a duration", "'ten epochs'"]),
    (["budget='5 %'"], ["percentage of itself"]),
    (["budget='3 tokens'"], ["budget must be a duration", "images"]),
    (["schedule.warmup='90 epochs'"], ["warmup must be at least 0 and less than total"]),
    (["schedule.shape=cosin"], ["shape must be one of"]),
    (["schedule.power=two"], ["schedule.power must be a number, not 'two'"]),
    (["gradient.clip_norm=0"], ["gradient.clip_norm must be more than 0"]),
    (["gradient.larc={trust: 0.001, mood: clip}"], ["gradient", "mood"]),
    (["decay.apply_to=some"], ["decay.apply_to must be one of all, matrices"]),
    (["hardware.precision=fp8"], ["hardware.precision must be one of auto, fp32, bf16"]),
    (["hardware.precision=fp16"], ["fp16 needs a GPU"]),
    (["hardware.device=cuda"], ["no GPU is visible"]),
    (["hardware.processes=few"], ["hardware.processes must be a number or 'auto'"]),
    (["hardware.compile=1"], ["hardware.compile must be true or false, not 1"]),
    (["seed=-1"], ["seed must be at least 0"]),
    (["seed=1.5"], ["seed must be an integer, not 1.5"]),
    (["model.classes=9"], ["10", "9"]),
    (["scale=paper"], ["imagenet"]),
    (["optimizer.lr"], ["can't be read", "key=value"]),
    (["tracking.wandb=sometimes"], ["tracking.wandb must be one of"]),
    (["model.stages=[]"], ["model: no model can be built"]),
    (["model.width=0"], ["model: "]),
    (["model.width=1000000000"], ["model: "]),
    (["decay.rules={x: 1}"], ["decay.rules must be a mapping of mappings, not {'x': 1}"]),
    (["decay.rules={x: {lrr: 1}}"], ["decay.rules.x.lrr is not an option of", "'lr'"]),
    (["decay.rules={x: {lr: 1}}"], ["parameter rule 'x' matches no parameter"]),
    (["hardware.timeout_s=1e300"], ["hardware.timeout_s must be between 1 and 1,000,000"]),
    (["hardware.timeout_s=inf"], ["hardware.timeout_s must be finite, not inf"]),
    (["hardware.data_workers=100000"], ["hardware.data_workers must be between 0 and 1,024"]),
    (["data.max_unreadable=nan"], ["data.max_unreadable must be finite, not nan"]),
    (["schedule.floor=9"], ["floor=9.0 is above lr"]),
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Data and outputs in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("arguments", "wanted"), CASES, ids=lambda value: " ".join(value)[:40])
def test_bad_configuration(arguments, wanted, tmp_path, capsys):
    replaced = {argument.partition("=")[0] for argument in arguments}
    command = [
        argument for argument in GOOD if argument.partition("=")[0] not in replaced
    ] + arguments
    assert launch.main(command) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    for text in wanted:
        assert text in message, message
    assert not (tmp_path / "outputs").exists()


def test_without_an_experiment_the_message_lists_them(capsys):
    assert launch.main(["scale=smoke"]) == 2
    assert "imagenet/ (12: adamw_100ep" in capsys.readouterr().err


MISTAKES = {
    "optimizer.lrr=1": "optimizer.lrr is not an option of novograd",
    "optimizer.betas=[0.9,1.5]": "optimizer.betas: ",
    "optimizer.lr=-1": "optimizer.lr must be finite and not negative, not -1",
    "optimizer=shampoo": "optimizer=shampoo does not exist",
    "hardware.device=tpu": "hardware.device must be one of auto, cpu, cuda, not 'tpu'",
    "hardware.timeout_s=1e300": "hardware.timeout_s must be between",
    "batch.micro=7": "batch.global_size=64 is not a multiple of batch.micro=7: 64 = 9 × 7 + 1",
    "seed=x": "seed must be an integer, not 'x'",
    "+bar=1": "bar is not a known key",
    "hardwear.x=1": "hardwear is not a known key; did you mean 'hardware'?",
    "model.widht=8": "model.widht is not a known key; did you mean 'width'?",
    "model.width=wide": "model.width must be an integer, not 'wide'",
    "data.max_unreadable=nan": "data.max_unreadable must be finite",
    "budget='ten epochs'": "budget must be a duration",
    "evaluation.every='3 weeks'": "evaluation.every must be a duration",
    "schedule.shape=cosin": "schedule.shape must be one of",
    "gradient.larc={mood: clip}": "gradient: ",
    "decay.apply_to=some": "decay.apply_to must be one of all, matrices",
    "decay.rules={x: {lrr: 1}}": "decay.rules.x.lrr is not an option of",
    "cluster.time=1": "leaves nothing of cluster.time=1 min",
    "tracking.wandb=sometimes": "tracking.wandb must be one of",
}
FOUND_BY_BUILDING = {
    "model.stages=[]": "model: no model can be built with these options",
    "model.width=0": "model: no model can be built with these options",
    "model.width=1000000000": "model: no model can be built with these options",
    "model.width=1000000": "model: weights and gradients take ",
}


def test_all_mistakes_are_listed_at_once(capsys):
    assert launch.main([*GOOD, *MISTAKES]) == 2
    message = capsys.readouterr().err
    for text in MISTAKES.values():
        assert text in message, message
    assert message.startswith(f"{len(MISTAKES)} problems in the configuration:"), message


@pytest.mark.parametrize("other", MISTAKES)
def test_no_mistake_hides_another(other, capsys):
    """Each beside a range, a name and a division that are wrong in other sections."""
    three = {key: MISTAKES[key] for key in ("batch.micro=7", "hardware.device=tpu")}
    three["checkpoint.keep=0"] = "checkpoint.keep must be at least 1"
    assert launch.main([*GOOD, *dict.fromkeys([*three, other])]) == 2
    message = capsys.readouterr().err
    for text in (*three.values(), MISTAKES[other]):
        assert text in message, message


@pytest.mark.parametrize("of_model", FOUND_BY_BUILDING)
def test_what_building_the_model_finds_is_in_the_same_message(of_model, capsys):
    others = [key for key in MISTAKES if not key.startswith(("model.", "hardware.device"))]
    assert launch.main([*GOOD, *others, of_model]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"{len(others) + 1} problems in the configuration:"), message
    assert FOUND_BY_BUILDING[of_model] in message, message


def test_a_good_configuration_becomes_a_run_spec():
    spec = make_run_spec(GOOD)
    assert spec.plan.accumulation == 2
    assert spec.run_id.startswith("imagenet/novograd_100ep-")


def test_the_fingerprint_depends_on_the_recipe_alone():
    first = make_run_spec(GOOD).fingerprint
    assert make_run_spec([*GOOD, "hardware.processes=2", "tracking.wandb=offline"]).fingerprint == (
        first
    )
    assert make_run_spec([*GOOD, "optimizer.lr=0.1"]).fingerprint != first


def test_problems_are_exceptions_with_lists():
    with pytest.raises(ConfigProblem) as caught:
        make_run_spec([*GOOD, "seed=x"])
    assert len(caught.value.problems) == 1
    assert issubclass(DataProblem, Exception)
