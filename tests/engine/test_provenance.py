"""Where numbers came from, what a config is called, and the records that keep both."""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from engine import provenance
from engine.provenance import describe_environment, fingerprint

CONFIG = {
    "seed": 1,
    "optimizer": {"name": "novograd", "lr": 0.01, "betas": [0.95, 0.98]},
    "data": {"root": "/somewhere", "size": 224},
    "tracking": {"mode": "off"},
}


class TestEnvironment:
    def test_says_what_ran(self):
        found = describe_environment()
        assert found["versions"]["torch"] == metadata.version("torch")
        assert found["versions"]["python"] == platform.python_version()
        assert set(found["versions"]) == {"python", "torch", "torchvision", "numpy"}
        hardware = found["hardware"]
        if torch.cuda.is_available():
            assert hardware["count"] == len(hardware["names"]) > 0
        else:
            assert hardware["device"] == "cpu"
            assert hardware["name"]
            assert hardware["threads"] == torch.get_num_threads()

    def test_of_a_gpu(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"V100 {index}")
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        assert describe_environment()["hardware"] == {
            "device": "cuda",
            "cuda": "12.8",
            "count": 2,
            "names": ["V100 0", "V100 1"],
        }

    def test_names_no_host_no_user_no_path(self):
        text = json.dumps(describe_environment())
        assert not re.search(r'"[^"]*/(home|root|work|usr|tmp)\b', text)
        assert str(Path.home()) not in text
        words = re.findall(r"[\w.-]+", text)
        assert platform.node() not in words
        assert getpass.getuser() not in words

    def test_survives_without_packages_and_without_git(self, monkeypatch):
        monkeypatch.setattr(provenance, "PACKAGES", ("no-such-package",))
        monkeypatch.setenv("PATH", "")
        found = describe_environment()
        assert found["commit"] is None
        assert found["dirty"] is None
        assert found["versions"]["no-such-package"] is None


@pytest.fixture
def checkout(tmp_path):
    def git(*arguments):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        who = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", *who, *arguments],
            cwd=tmp_path,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    git("init", "-q")
    (tmp_path / "results").mkdir()
    (tmp_path / "a.py").write_text("1\n")
    (tmp_path / "results" / "REPORT.md").write_text("1\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    return tmp_path, git("rev-parse", "HEAD")


class TestCommit:
    def test_clean(self, checkout):
        root, commit = checkout
        assert provenance._commit(root) == (commit, False)

    @pytest.mark.parametrize(
        "name", ["a.py", "new.py", "analysis/new.py", "analysis/templates/x.j2", "paper/x.yaml"]
    )
    def test_dirty(self, checkout, name):
        root, commit = checkout
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("2\n")
        assert provenance._commit(root) == (commit, True)

    def test_what_runs_write_is_no_change(self, checkout):
        root, commit = checkout
        (root / "results" / "REPORT.md").write_text("2\n")
        (root / "results" / "new.json").write_text("{}\n")
        (root / "results" / "runs").mkdir()
        (root / "results" / "runs" / "new.json").write_text("{}\n")
        (root / "README.md").write_text("the report's table\n")
        assert provenance._commit(root) == (commit, False)

    def test_another_repository_around_the_suite_is_not_ours(self, checkout):
        root, _ = checkout
        assert provenance._commit(root / "results") == (None, None)

    def test_variables_of_git_do_not_lead_astray(self, checkout, monkeypatch):
        root, commit = checkout
        monkeypatch.setenv("GIT_DIR", "/nowhere")
        assert provenance._commit(root) == (commit, False)

    def test_outside_git(self, tmp_path):
        assert provenance._commit(tmp_path) == (None, None)
        assert provenance._commit(tmp_path / "missing") == (None, None)


class TestFingerprint:
    def test_is_stable(self):
        """A change of this value would orphan every run that has one in its name."""
        assert fingerprint(CONFIG, ["tracking", "data.root"]) == "83385b33a85a"

    def test_does_not_depend_on_the_order_of_keys(self):
        turned = {key: CONFIG[key] for key in reversed(CONFIG)}
        assert fingerprint(turned, []) == fingerprint(CONFIG, [])
        assert re.fullmatch("[0-9a-f]{12}", fingerprint(CONFIG, []))

    def test_depends_on_values(self):
        assert fingerprint(CONFIG | {"seed": 2}, []) != fingerprint(CONFIG, [])

    def test_leaves_out_what_it_is_told(self):
        moved = CONFIG | {"data": {"root": "/elsewhere", "size": 224}, "tracking": None}
        left_out = ["tracking", "data.root"]
        assert fingerprint(moved, left_out) == fingerprint(CONFIG, left_out)
        larger = CONFIG | {"data": {"root": "/somewhere", "size": 299}}
        assert fingerprint(larger, left_out) != fingerprint(CONFIG, left_out)

    def test_missing_keys_are_no_error(self):
        assert fingerprint(CONFIG, ["x", "seed.x", "x.y", "data.x"]) == fingerprint(CONFIG, [])

    def test_leaves_the_config_alone(self):
        before = json.dumps(CONFIG)
        fingerprint(CONFIG, ["tracking", "data.root"])
        assert json.dumps(CONFIG) == before

    def test_needs_no_torch(self):
        program = (
            "import sys\nfrom engine.provenance import fingerprint\nfingerprint({}, [])\n"
            "assert 'torch' not in sys.modules\n"
        )
        root = Path(provenance.__file__).parent.parent
        subprocess.run([sys.executable, "-c", program], cwd=root, check=True)
