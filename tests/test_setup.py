"""The set-up: one lock, complete and exact, and clear messages where it can't start."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from launch.lockfile import dependency_groups, hashes_of, pinned_lines, read_lock

ROOT = Path(__file__).parent.parent
LOCK = (ROOT / "requirements.lock").read_text()
LOCKED = read_lock(LOCK)
LINUX = 'platform_system == "Linux"'
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run_make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_every_package_is_pinned_with_checksums_and_nothing_is_a_url():
    for line in LOCK.splitlines():
        package, _, marker = line.removesuffix(" \\").partition(" ; ")
        if line.startswith("#"):
            continue
        if not re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", package):
            assert re.fullmatch(r"[a-z0-9.-]+==[0-9a-z.]+", package)
            assert marker in ("", LINUX, f'{LINUX} and platform_machine == "x86_64"')
    assert list(LOCKED)[-1] == "fairseq-fixed"
    assert all(digests for _, digests in LOCKED.values())
    assert "://" not in LOCK


def test_set_up_installs_nothing_without_its_checksum():
    recipe = run_make("-n", "setup", "VENV=none", "PYTHON=python3.11").stdout
    installs = [line for line in recipe.splitlines() if " -m pip " in line and " install " in line]
    assert len(installs) == 3
    assert all("--require-hashes" in line for line in installs)


def test_another_build_of_torch_is_the_locked_version_and_all_else_stays_locked():
    """The wheel index is the user's to give: for GPUs that the locked build has no kernels for."""
    recipe = run_make("-n", "setup", "TORCH_INDEX=INDEX", "VENV=none", "PYTHON=python3.11").stdout
    of_torch = recipe[recipe.index('--index-url "INDEX"') :]
    chosen = re.search(r"\$\(grep .* requirements\.lock\)", of_torch)
    assert chosen is not None
    echoed = subprocess.run(["bash", "-c", f"echo {chosen[0]}"], cwd=ROOT, capture_output=True)
    names = ("torch", "torchaudio", "torchvision")
    pinned = [f"{name}=={LOCKED[name][0]}" for name in names]
    assert sorted(echoed.stdout.decode().split()) == sorted(pinned)
    parts = re.findall(r"<\((awk .*? requirements\.lock)\)", recipe, re.DOTALL)
    installed = set[str]()
    for part in parts:
        shown = subprocess.run(["bash", "-c", part], cwd=ROOT, capture_output=True, check=True)
        installed |= set(read_lock(shown.stdout.decode()))
    replaced = set(LOCKED) - installed
    assert set(names) | {"triton"} <= replaced
    assert all(re.match("torch|triton|nvidia-|cuda-", name) for name in replaced)


def test_the_integrations_add_to_the_lock_and_replace_nothing_of_it():
    added = read_lock((ROOT / "tests" / "integrations" / "requirements.txt").read_text())
    assert {"accelerate", "lightning", "transformers"} <= set(added)
    assert not set(added) & set(LOCKED), "a second torch, say, would be another test"
    assert all(digests for _, digests in added.values())
    recipe = run_make("-n", "test-integrations", "INTEGRATIONS=none").stdout.replace("\\\n", "")
    (install,) = [line for line in recipe.splitlines() if "none/bin/python -m pip --dis" in line]
    assert "--no-deps" in install
    assert "--require-hashes" in install


def test_a_package_that_differs_from_the_lock_stops_the_set_up(tmp_path, monkeypatch):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "pyproject.toml").write_text("[project]\nname = 'wheel'\nversion = '999'\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    options = ["--no-build-isolation", "--no-deps", "-q", "-w", tmp_path]
    subprocess.run([*pip, "wheel", *options, tmp_path / "p"], check=True, capture_output=True)
    lock = tmp_path / "lock"
    lock.write_text(f"wheel==999 --hash=sha256:{'0' * 64}\n")
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    given = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": tmp_path, "PIP_TARGET": tmp_path / "out"}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    done = run_make("setup", f"LOCK={lock}", f"VENV={tmp_path / 'venv'}")
    assert done.returncode == 2
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert "make: set-up stopped: pip could not install what requirements.lock says" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_lock_satisfies_the_project():
    for text in [*PROJECT["dependencies"], *chain.from_iterable(dependency_groups().values())]:
        requirement = Requirement(text)
        version, _ = LOCKED[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), text


def test_checksums_are_those_of_files_that_can_be_installed_here():
    names = {
        "a": "pkg-1.0-py3-none-any.whl",
        "b": "pkg-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
        "c": "pkg-1.0-cp39-abi3-macosx_11_0_arm64.whl",
        "d": "pkg-1.0.tar.gz",
        "e": "pkg-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",  # another Python
        "f": "pkg-1.0-cp311-cp311-win_amd64.whl",  # another system
        "0": "pkg-1.0.1-py3-none-any.whl",  # another version
    }
    page = "".join(f'<a href="x/{n}#sha256={c * 64}">{n}</a>\n' for c, n in names.items())
    assert hashes_of(page, "1.0") == [c * 64 for c in "abcd"]


def test_packages_that_only_linux_needs_are_marked():
    packages: list[dict[str, Any]] = [
        {
            "name": "torch",
            "version": "2.0+cpu",
            "requires_dist": [
                'nvidia-x; platform_system == "Linux"',
                "Sym_py",
                'extra-one; extra == "opt"',
            ],
        },
        {"name": "nvidia-x", "version": "1", "requires_dist": ["nvidia-y"]},
        {"name": "nvidia-y", "version": "1"},
        {"name": "Sym.Py", "version": "3"},
    ]
    assert pinned_lines(packages, ["torch"]) == [
        'nvidia-x==1 ; platform_system == "Linux"',
        'nvidia-y==1 ; platform_system == "Linux"',
        "sym-py==3",
        "torch==2.0",
    ]


def test_conda_users_get_the_environment_that_make_looks_for():
    name = re.search(r"^name: (.+)$", (ROOT / "environment.yml").read_text(), re.M)
    assert name
    assert f"ifeq ($(CONDA_DEFAULT_ENV),{name[1]})" in (ROOT / "Makefile").read_text()


def test_the_docker_image_copies_what_the_set_up_imports(tmp_path):
    for source, target in re.findall(
        r"^COPY (\w+) (\S+)$", (ROOT / "Dockerfile").read_text(), re.M
    ):
        shutil.copytree(ROOT / source, tmp_path / target)
    done = subprocess.run(
        [sys.executable, "-m", "scripts.build_kernels"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    phony = re.findall(r"^\.PHONY: (.+)$", makefile, re.M)
    listed = run_make("help").stdout
    for target in phony:
        assert re.search(rf"^  make {target} +\S", listed, re.M), target


@pytest.mark.parametrize(
    ("python", "message"),
    [("", "no Python 3.11 with venv and pip found"), ("/bin/false", "is not a Python 3.11")],
)
def test_without_the_right_python_one_line_says_what_is_missing(python, message, tmp_path):
    done = run_make("setup", f"PYTHON={python}", f"VENV={tmp_path / 'none'}")
    assert done.returncode == 2
    complaint = [line for line in done.stderr.splitlines() if "***" not in line]
    assert len(complaint) == 1
    assert message in complaint[0]
    assert not (tmp_path / "none").exists()


def test_the_readme_names_the_commands_that_ci_runs():
    readme = (ROOT / "README.md").read_text()
    ci = (ROOT / ".ci" / "run").read_text()
    assert "make test" in readme
    assert re.search(r"^make test$", ci, re.M)
    assert re.search(r"^make check$", ci, re.M)
