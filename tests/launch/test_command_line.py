"""Command lines as Hydra's users know them: help, overrides, --cfg, --info, -m, own configs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from engine.config import ConfigProblem
from engine.records import read_run_file, write_run_file
from launch.command_line import CommandLine, describe_groups
from launch.completion import SET_UP, complete_line, complete_override
from launch.compose import compose, searching
from launch.config_files import CONFIGS, ROOT, options_of
from launch.run_spec import make_run_spec
from launch.sweep import read_sweep
from scripts import evaluate, launch, train
from tests.launch.launching import command, run_folder

NOVOGRAD = ["experiment=imagenet/novograd_100ep", "scale=paper"]
SCRIPTS = sorted(path.stem for path in (ROOT / "scripts").glob("[a-z]*.py"))
OWN = """# @package _global_
# A row of my own: a larger learning rate.
#   python -m scripts.launch --config-dir DIR experiment=mine/fast
defaults:
  - /experiment/imagenet/novograd_100ep
  - override /optimizer: mine
  - _self_
optimizer:
  lr: 0.02
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A user's folder of configs."""
    folder = tmp_path / "own configs"
    for name in ("experiment/mine", "optimizer", "sweep"):
        (folder / name).mkdir(parents=True)
    (folder / "experiment/mine/fast.yaml").write_text(OWN)
    plain = (CONFIGS / "optimizer/novograd.yaml").read_text()
    (folder / "optimizer/mine.yaml").write_text(plain)
    (folder / "sweep/rates.yaml").write_text("experiments: [mine/fast]\ngrid: {seed: [0, 1]}\n")
    return folder


def test_every_script_has_help_and_names_the_nearest_flag_without_importing_torch():
    """Nor do the recipes' fingerprints, which `report --check` needs."""
    program = f"""
import contextlib, importlib, io, sys
for name in {SCRIPTS}:
    sys.argv = [name, "--help"]
    main, text = importlib.import_module(f"scripts.{{name}}").main, io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main()
        raise AssertionError(f"{{name}} went on after --help")
    assert f"python -m scripts.{{name}}" in text.getvalue(), name
    sys.argv, text = [name, "--hlep"], io.StringIO()
    with contextlib.redirect_stderr(text), contextlib.suppress(SystemExit):
        main()
    assert text.getvalue().endswith("is not an option; did you mean '--help'?\\n"), text.getvalue()
    loaded = {{"torch", "hydra", "matplotlib", "wandb"}} & set(sys.modules)
    assert not loaded, f"{{name}} --help imports {{loaded}}"
from launch.run_spec import recipe_fingerprints
recipe_fingerprints([("imagenet/novograd_100ep", "mini")])
assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_worker_needs_the_folder_of_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit) as ended:
        train.main()
    assert ended.value.code == 2
    assert "nowhere is not a run's folder: it has no run.yaml" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_what_is_missing_is_named_without_what_may_be_left_out(capsys):
    with pytest.raises(SystemExit) as ended:
        evaluate.main([])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("python -m scripts.evaluate: model is missing;")


def test_help_lists_every_option_of_every_group():
    listed = describe_groups().replace("/:", "/").split()
    for group in ("optimizer", "experiment", "hardware", "scale", "model"):
        assert group in listed
        assert {name.rpartition("/")[2] for name in options_of(group)} <= set(listed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--multirn"], "--multirn is not an option; did you mean '--multirun'?"),
        (["--cfg", "jop"], "argument --cfg: jop is not a choice; did you mean 'job'?"),
        (["-m", "--cfg", "job"], "plan_only=true"),
        ([*NOVOGRAD, "--package", "model"], "--package shows a part of --cfg job"),
        ([*NOVOGRAD, "--cfg", "job", "-p", "modle"], "no 'modle'; did you mean 'model'?"),
        ([*NOVOGRAD, "--config-dir", "/no/where"], "--config-dir /no/where is not a folder"),
        ([*NOVOGRAD, "optimizer=novogard"], "does not exist; did you mean 'novograd'?"),
        ([*NOVOGRAD, "optimzer=adam"], "optimzer is not a known key; did you mean 'optimizer'?"),
        ([*NOVOGRAD, "seed=0,1"], "seed=0,1 is several values: add -m (--multirun)"),
        ([*NOVOGRAD, "seed=0,1"], "a list as seed=[0,1] and a text as \"seed='0,1'\""),
        ([*NOVOGRAD, "optimizer=adam,sgd"], "optimizer=adam,sgd is several values: add -m"),
        ([*NOVOGRAD, "seed=range(3)"], "seed=range(3) is several values: add -m"),
        ([*NOVOGRAD, "+seed=1"], "An item is already at 'seed'"),
        ([*NOVOGRAD, "~optimizer.lrr"], "'optimizer.lrr' does not exist"),
        ([*NOVOGRAD, "paths.outputs=${nothing}"], "'nothing' not found"),
        (["scale=smoke"], "experiment=… is missing; there are imagenet/ (12: adamw_100ep,"),
        ([*NOVOGRAD, "~experiment"], "experiment=… is missing"),
    ],
)
def test_a_mistake_is_one_short_message(arguments, message, capsys):
    status: Any
    try:
        status = launch.main(arguments)
    except SystemExit as ended:
        status = ended.code
    found = capsys.readouterr().err
    assert status == 2
    assert message in found
    assert max(map(len, found.splitlines())) < 300


@pytest.mark.parametrize(
    "overrides",
    [
        ["seed=3", "optimizer=adamw", "gradient=clip", "hardware=dgx1"],
        ["tracking.tags=['a,b',c]", "paths.outputs='x,y'"],
        ["optimizer.betas=[0.9,0.1]", "batch={micro: 64}", "gradient.larc={trust: 0.1}"],
        ["++optimizer.eps=1e-6", "+cluster.options.nice=1", "~optimizer.amsgrad"],
        ["init_from=null", "paths.outputs=${paths.data}/runs", "gradient.clip_norm=0.5"],
    ],
)
def test_overrides_mean_what_hydra_makes_of_them(overrides):
    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
        theirs = OmegaConf.to_container(hydra_compose("run", [*NOVOGRAD, *overrides]), resolve=True)
    assert isinstance(theirs, dict)
    theirs.pop("multiply")  # 1 everywhere at the paper's scale
    known = {"experiment": "imagenet/novograd_100ep", "scale": "paper"}
    assert compose([*NOVOGRAD, *overrides]) == theirs | known


def test_a_merged_mapping_keeps_what_the_scale_makes_of_its_other_keys():
    small = [NOVOGRAD[0], "scale=short"]
    assert compose([*small, "batch={micro: 32}"])["batch"] == {"global_size": 64, "micro": 32}
    assert compose([*small, "batch.global_size=96"])["batch"]["global_size"] == 96


def test_cfg_shows_what_runs(undisturbed, capsys):
    """The frozen configuration, but for what the machine and the folder make of it."""
    folder, _ = undisturbed
    arguments = command(folder)[3:]
    assert launch.main([*arguments, "--cfg", "job"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    frozen = read_run_file(run_folder(folder))
    changed = {key for key in shown if shown[key] != frozen.config[key]}
    assert changed <= {"hardware"}
    assert launch.main([*arguments, "--cfg", "plan"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["run_id"] == frozen.run_id


def test_multirun_is_a_sweep(monkeypatch):
    called: list[str] = []

    class Replaced(Exception):
        pass

    def replace(_: str, arguments: list[str]) -> None:
        called.extend(arguments)
        raise Replaced

    monkeypatch.setattr(os, "execv", replace)
    given = ["experiment=glob(wmt14/adam*)", "optimizer.lr=0.01,0.02", "seed=range(3)"]
    with pytest.raises(Replaced):
        launch.main(["-m", *given, "scale=mini"])
    assert called[1:3] == ["-m", "scripts.sweep"]
    sweep, _ = read_sweep(called[3:])
    assert sweep.experiments == ["wmt14/adam", "wmt14/adamw"]
    assert sweep.axes == {"optimizer.lr": [0.01, 0.02], "seed": [0, 1, 2]}


def test_a_config_of_the_user_that_is_not_utf8_is_named(own, capsys):
    file = own / "experiment" / "mine" / "fast.yaml"
    file.write_bytes(b"# \xe9\n" + file.read_bytes())
    arguments = ["experiment=mine/fast", "scale=smoke", "hardware=cpu"]
    assert launch.main([*arguments, "--config-dir", str(own)]) == 2
    assert f"{file} must be UTF-8" in capsys.readouterr().err


def test_a_run_of_the_users_own_config_records_its_text(own, tmp_path, capsys):
    arguments = ["experiment=mine/fast", "scale=smoke", "hardware=cpu"]
    paths = [f"paths.{name}={tmp_path / name}" for name in ("outputs", "data")]
    spec = make_run_spec([*arguments, *paths, *searching(own)])
    write_run_file(spec.folder, spec.freeze())
    frozen = read_run_file(spec.folder)
    assert frozen.config["optimizer"]["lr"] == 0.02
    assert frozen.user_configs["experiment/mine/fast.yaml"] == OWN
    assert set(frozen.user_configs) == {"experiment/mine/fast.yaml", "optimizer/mine.yaml"}
    assert frozen.notes.startswith("A row of my own")
    assert launch.main([*arguments, "--config-dir", str(own), "--info", "defaults"]) == 0
    lines = capsys.readouterr().out.splitlines()
    files = [line.split()[0] for line in lines]
    assert files.index("experiment/imagenet/novograd_100ep") < files.index("experiment/mine/fast")
    assert files.index("experiment/mine/fast") < files.index("shrink/smoke_imagenet")


def test_the_users_own_sweeps(own):
    sweep, _ = read_sweep(["sweep=rates", "scale=smoke", *searching(own)])
    assert (sweep.experiments, sweep.metric) == (["mine/fast"], "val/top1")
    assert all(searching(own)[0] in trial.overrides for trial in sweep.grid_trials())


def test_the_users_configs_replace_none_of_ours(own):
    (own / "optimizer/sgd.yaml").write_text("name: sgd\nlr: 1.0\n")
    with pytest.raises(ConfigProblem, match=r"has the name of configs/optimizer/sgd.yaml"):
        compose([*NOVOGRAD, *searching(own)])


def test_completion(monkeypatch):
    assert "experiment=" in complete_override([], "exp")
    assert "optimizer=adamw " in complete_override([], "optimizer=ad")
    assert "experiment=wmt14/adam,wmt14/adamw " in complete_override([], "experiment=wmt14/adam,w")
    assert "optimizer.lr=" in complete_override(NOVOGRAD, "optimizer.")
    assert complete_override(NOVOGRAD, "optimizer.lr=") == ["optimizer.lr=0.007 "]
    parser = CommandLine("launch", "")
    monkeypatch.setenv("COMP_LINE", "python -m scripts.launch --shell")
    assert complete_line(parser) == ["--shell-completion "]


@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("python -m scripts.lau", ["scripts.launch"]),
        ("python -m scripts.plan scale=m", ["mini"]),  # bash has taken the part up to the =
        ("python -m scripts.plan sca", ["scale="]),
        ("python -c pass", []),
    ],
)
def test_completion_in_bash(line, replies, tmp_path):
    (tmp_path / "python").symlink_to(sys.executable)
    script = f"""{SET_UP}
COMP_LINE={line!r} COMP_POINT={len(line)}
_suite_completion
printf '%s\\n' "${{COMPREPLY[@]}}" """
    path = f"{tmp_path}:{os.environ['PATH']}"
    python = {"PYTHONPATH": os.pathsep.join(sys.path)}  # the link has no environment of its own
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env=os.environ | {"PATH": path} | python,
        capture_output=True,
        text=True,
        check=False,
    )
    assert [word.strip() for word in done.stdout.split()] == replies, done.stderr
