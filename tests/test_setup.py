"""The set-up: one lock, complete and exact, and clear words where it can't start."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.lock import lock_lines

ROOT = Path(__file__).parent.parent
LOCK = [
    line
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if not line.startswith("#")
]
LINUX = 'platform_system == "Linux"'
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run_make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_every_package_is_pinned_and_nothing_is_a_url():
    for line in LOCK:
        package, _, marker = line.partition(" ; ")
        assert re.fullmatch(r"[a-z0-9.-]+==[0-9a-z.]+", package)
        assert marker in ("", LINUX, f'{LINUX} and platform_machine == "x86_64"')
    assert LOCK[-1].startswith("fairseq-fixed==")


def test_the_lock_satisfies_the_project():
    locked = {line.split("==")[0]: line.split(";")[0].split("==")[1].strip() for line in LOCK}
    extras = PROJECT["optional-dependencies"].values()
    for text in [*PROJECT["dependencies"], *(text for extra in extras for text in extra)]:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        assert requirement.specifier.contains(locked[name]), text


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
    assert lock_lines(packages, ["torch"]) == [
        'nvidia-x==1 ; platform_system == "Linux"\n',
        'nvidia-y==1 ; platform_system == "Linux"\n',
        "sym-py==3\n",
        "torch==2.0\n",
    ]


def test_conda_users_get_the_environment_that_make_looks_for():
    name = re.search(r"^name: (.+)$", (ROOT / "environment.yml").read_text(), re.M)
    assert name
    assert f"ifeq ($(CONDA_DEFAULT_ENV),{name[1]})" in (ROOT / "Makefile").read_text()


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
