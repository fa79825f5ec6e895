"""Who may know whom: the rooms of the house, kept by reading every import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("optim", "engine", "tasks", "scripts", "results")
SUBJECTS = ("imagenet", "librispeech", "wmt14", "wikitext103")
ANYWHERE = ("tests",)

# What may be named only in certain files, as paths or folders relative to the root.
KEPT = {
    "torch.optim": ["optim/"],
    "hydra": ["scripts/launch.py"],
    "fairseq": ["tasks/wmt14/"],
    "wandb": ["engine/tracking.py", "engine/wandb_runs.py"],
    "wandb_workspaces": ["engine/wandb_runs.py"],
    "matplotlib": ["results/plots.py"],
    "torch.distributed": ["engine/distributed.py", "scripts/launch.py"],
}
AT_MOST_ONE_FILE = ("fairseq",)
# What a room may import of the others.
MAY_IMPORT = {
    "optim": set(),
    "engine": {"optim", "tasks"},
    "tasks": set(),
    "results": set(),
    "scripts": {"optim", "engine", "tasks", "results"},
}
# Of `tasks` the engine knows the contract, not the subjects.
CONTRACT = {"tasks", "tasks.base", "tasks.streams", "tasks.seeding", "tasks.catalog"}


def sources() -> list[Path]:
    return sorted(p for room in ROOMS for p in (ROOT / room).rglob("*.py"))


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names that a file imports, `from a import b` as a.b, and attributes of torch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "torch":
                yield f"torch.{node.attr}"


def is_part_of(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def complaints(path: str, source: str) -> list[str]:
    """What a file at this place in the tree may not import but does."""
    room, *below = Path(path).parts
    found = []
    for name in imports(ast.parse(source)):
        for package, places in KEPT.items():
            if is_part_of(name, package) and not any(path.startswith(place) for place in places):
                found.append(f"{path} imports {name}: only {', '.join(places)} may")
        other = name.split(".")[0]
        if other == "tests":
            found.append(f"{path} imports {name}: nothing but tests imports tests")
        if other not in ROOMS or other == room:
            continue
        if other not in MAY_IMPORT[room]:
            found.append(f"{path} imports {name}: {room} may not know {other}")
        elif room == "engine" and other == "tasks":
            if not any(is_part_of(name, module) for module in CONTRACT - {"tasks"}):
                found.append(f"{path} imports {name}: the engine knows no subject")
    if room == "tasks" and below and below[0] in SUBJECTS:
        for name in imports(ast.parse(source)):
            others = [s for s in SUBJECTS if s != below[0] and is_part_of(name, f"tasks.{s}")]
            if others:
                found.append(f"{path} imports {name}: a subject knows no other")
    return found


def test_every_import_is_allowed():
    found = [c for p in sources() for c in complaints(str(p.relative_to(ROOT)), p.read_text())]
    assert not found, "\n".join(found)


def test_fairseq_is_imported_in_one_file_only():
    for package in AT_MOST_ONE_FILE:
        users = [
            p
            for p in sources()
            if any(is_part_of(name, package) for name in imports(ast.parse(p.read_text())))
        ]
        assert len(users) <= 1, users


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("engine/step.py", "import torch.optim"),
        ("engine/step.py", "from torch.optim import SGD"),
        ("engine/step.py", "import torch\ntorch.optim.SGD"),
        ("scripts/train.py", "import hydra"),
        ("tasks/wikitext103/task.py", "from fairseq.models import transformer"),
        ("engine/trainer.py", "import wandb"),
        ("engine/trainer.py", "import torch.distributed as dist"),
        ("tasks/imagenet/task.py", "import torch\ntorch.distributed.get_rank()"),
        ("optim/factory.py", "from engine.config import Config"),
        ("tasks/imagenet/task.py", "from optim import NovoGrad"),
        ("tasks/imagenet/task.py", "from engine import plan"),
        ("tasks/imagenet/task.py", "from tasks.wmt14 import data"),
        ("engine/trainer.py", "from tasks.imagenet.task import ImageNet"),
        ("engine/trainer.py", "from tests.optim import algorithm1"),
    ],
)
def test_the_rules_can_fail(path, source):
    assert complaints(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("engine/trainer.py", "from tasks.base import Task"),
        ("tasks/imagenet/task.py", "from tasks.base import Task\nfrom tasks.imagenet import data"),
        ("scripts/launch.py", "import hydra\nimport torch.distributed.run"),
        ("tasks/wmt14/fairseq_backend.py", "import fairseq"),
    ],
)
def test_what_is_allowed(path, source):
    assert not complaints(path, source)


def test_no_file_is_called_after_nothing():
    """A function with no room means that a room is missing a name."""
    nameless = [p for p in sources() if p.stem in ("utils", "util", "common", "helpers", "misc")]
    assert not nameless


def test_every_folder_of_tests_is_a_package():
    """Without __init__.py `import optim` could load tests/optim."""
    folders = {p.parent for p in (ROOT / "tests").rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in folders)
    for room in ROOMS:
        if (ROOT / room).exists() and any((ROOT / room).glob("*.py")):
            module = __import__(room)
            assert Path(module.__file__ or "").is_relative_to(ROOT / room)
