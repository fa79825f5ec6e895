"""The package `novograd`: built as a wheel, installed without the suite, used with no checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

ROOT = Path(__file__).parents[2]

USER = """
import copy, io, sys
import torch
import novograd
from novograd import NovoGrad, native

assert "optim" not in sys.modules, "the package must not need the checkout's name"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
x = torch.randn(64, 8)
y = x.sum(1, keepdim=True)

def train(model, optimizer, steps):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

optimizer = NovoGrad(model.parameters(), lr=0.03, weight_decay=1e-4)
losses = train(model, optimizer, 10)
file = io.BytesIO()
torch.save(optimizer.state_dict(), file)
file.seek(0)
twin = copy.deepcopy(model)
resumed = NovoGrad(twin.parameters(), lr=0.5)
resumed.load_state_dict(torch.load(file, weights_only=True))
first, second = train(model, optimizer, 10), train(twin, resumed, 10)
assert first == second, "resumed training differs"
assert first[-1] < losses[0], "the loss did not fall"
for p, q in zip(model.parameters(), twin.parameters()):
    assert torch.equal(p, q)
unneeded = {"hydra", "monai", "omegaconf", "scipy", "timm", "wandb", "yaml"} & sys.modules.keys()
assert not unneeded, f"torch is all that it needs, not {unneeded}"
print(novograd.__file__)
print("kernel" if native.supports(torch.float32) else "no kernel")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that the checkout stays clean."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "optim", source / "optim", ignore=shutil.ignore_patterns("__pycache__"))
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """The folder that the wheel is installed into."""
    folder = tmp_path_factory.mktemp("site")
    pip("install", "--no-deps", "--no-index", "--no-compile", "--target", folder, wheel)
    return folder


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input"]
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def run_as_user(site: Path, folder: Path, **environment: str) -> list[str]:
    """In a folder and with a path that know nothing of the checkout."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", USER],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split("\n")[:2]


def test_the_wheel_is_for_every_platform_and_needs_torch_alone(wheel):
    assert re.fullmatch(r"novograd-[0-9.]+-py3-none-any\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [n for n in names if n.endswith("METADATA")]
        text = archive.read(metadata).decode()
    assert re.findall(r"^Requires-Dist: (.*)$", text, re.M) == ["torch>=2.6"]
    assert "from novograd import NovoGrad" in text  # the README
    assert "Requires-Python: >=3.10" in text
    assert "License-Expression: Apache-2.0" in text
    assert {"novograd/py.typed", "novograd/native.cpp", "novograd/novograd.py"} <= set(names)
    assert all(n.startswith("novograd") for n in names), "nothing of the suite is installed"


def test_the_installed_package_trains_resumes_and_builds_its_kernel(site, tmp_path):
    folder, cache = tmp_path / "elsewhere", tmp_path / "cache"
    folder.mkdir()
    before = sorted(site.rglob("*"))
    place, kernel = run_as_user(
        site, folder, XDG_CACHE_HOME=str(cache), PYTHONDONTWRITEBYTECODE="1"
    )
    assert Path(place).is_relative_to(site)
    assert sorted(site.rglob("*")) == before, "site-packages may not be writable"
    built = list((cache / "novograd").glob("native-*.so"))
    assert len(built) == (kernel == "kernel")
    compilers = ("c++", "g++", "clang++")
    if os.environ.get("CXX") or any(map(shutil.which, compilers)):
        assert kernel == "kernel"


def test_without_a_compiler_and_without_a_home_it_still_trains(site, tmp_path):
    nowhere = tmp_path / "file"
    nowhere.write_text("")  # not a folder: nothing can be written below it
    for environment in ({"CXX": "/bin/false"}, {"XDG_CACHE_HOME": str(nowhere / "cache")}):
        _, kernel = run_as_user(site, tmp_path, **environment)
        assert kernel == "no kernel"


def test_the_version_of_torch_is_one_that_the_package_allows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = project["dependencies"]
    oldest = tuple(map(int, requirement.removeprefix("torch>=").split(".")))
    assert tuple(map(int, torch.__version__.split("+")[0].split("."))) >= oldest


def test_the_readmes_recipes_are_the_experiments():
    text = (ROOT / "optim" / "README.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9]+/\w+)` \| .* \| (\S+) \| (\S+) \| (\S+) \|$", text, re.M)
    assert len(rows) == 10
    default = yaml.safe_load((ROOT / "configs/optimizer/novograd.yaml").read_text())["betas"]
    for name, lr, weight_decay, beta2 in rows:
        recipe = yaml.safe_load((ROOT / f"configs/experiment/{name}.yaml").read_text())["optimizer"]
        stated = (float(lr), float(weight_decay), [0.95, float(beta2)])
        assert stated == (recipe["lr"], recipe["weight_decay"], recipe.get("betas", default)), name
