"""Which package may import which, and other rules of the tree, kept by reading every file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("optim", "engine", "tasks", "launch", "analysis", "benchmarks", "scripts")
TASKS = ("imagenet", "librispeech", "wmt14", "wikitext103")

# Libraries that only these files import; a path that ends with / is a folder, * a wildcard.
CONFINED = {
    "torch.optim": ["optim/", "benchmarks/"],
    "torch.distributed": ["engine/distributed.py", "launch/", "benchmarks/scaling.py"],
    "hydra": ["launch/compose.py"],
    "submitit": ["launch/slurm.py"],
    "wandb": ["engine/tracking.py", "engine/wandb_*.py"],
    "wandb_workspaces": ["engine/wandb_*.py"],
    "matplotlib": ["analysis/charts*.py"],
    "fairseq": ["tasks/wmt14/fairseq_backend.py", "benchmarks/wmt.py"],
}
# What a package may import of the others: whole packages, or single modules of them.
ALLOWED = {
    "optim": [],
    "tasks": [],
    "engine": [
        "optim",
        "tasks.base",
        "tasks.streams",
        "tasks.seeding",
        "tasks.catalog",
        "tasks.files",
        "tasks.bars",
    ],
    "launch": [
        "optim",
        "engine",
        "tasks",
        "analysis.folders",
        "analysis.paper",
        "analysis.summaries",
        "analysis.tables",
        "analysis.trials",
        "analysis.verdicts",
    ],
    "analysis": [
        "engine.records",
        "engine.rows",
        "engine.predictions",
        "engine.formats",
        "tasks.files",
    ],
    "benchmarks": ["optim", "engine", "tasks", "launch", "analysis"],
    "scripts": ["optim", "engine", "tasks", "launch", "analysis", "benchmarks"],
}
LONGEST_SCRIPT = 79  # lines: parse the command line, call a package, return an exit status
NAMELESS = ("util", "utils", "common", "helper", "helpers", "misc", "tools", "shared")


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def imports(tree: ast.AST, package: str = "") -> Iterator[str]:
    """Dotted names that a file imports, `from a import b` as a.b, and attributes of torch."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = f"{package}.{node.module or ''}".rstrip(".") if node.level else node.module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "torch":
                yield f"torch.{node.attr}"


def is_part_of(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def is_at(path: str, place: str) -> bool:
    return path.startswith(place) if place.endswith("/") else Path(path).match(place)


def forbidden_imports(path: str, source: str) -> list[str]:
    """The imports that a file at this place in the tree may not have."""
    package, *below = Path(path).parts
    found = []
    for name in imports(ast.parse(source), package):
        for library, places in CONFINED.items():
            if is_part_of(name, library) and not any(is_at(path, place) for place in places):
                found.append(f"{path} imports {name}: only {', '.join(places)} may")
        other = name.split(".")[0]
        if other == "tests":
            found.append(f"{path} imports {name}: only tests import tests")
        if other == package == "scripts":
            found.append(f"{path} imports {name}: no script imports a script")
        elif other in PACKAGES and other != package:
            if not any(is_part_of(name, module) for module in ALLOWED[package]):
                known = ", ".join(ALLOWED[package]) or "no other package"
                found.append(f"{path} imports {name}: {package} may import {known}")
        if package == "tasks" and below and below[0] in TASKS:
            if any(task != below[0] and is_part_of(name, f"tasks.{task}") for task in TASKS):
                found.append(f"{path} imports {name}: a task imports no other task")
    return found


def unpickles(path: str, source: str) -> list[str]:
    """Calls that execute code from a file; torch.load is safe with weights_only=True."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        called, options = (
            ast.unparse(node.func),
            {k.arg: ast.unparse(k.value) for k in node.keywords},
        )
        unsafe = called in ("pickle.load", "pickle.loads", "pickle.Unpickler", "joblib.load")
        unsafe |= called == "torch.load" and options.get("weights_only") != "True"
        unsafe |= options.get("allow_pickle") == "True"
        if unsafe:
            found.append(f"{path}:{node.lineno} calls {called}: a file could execute code")
    return found


def parses_json(path: str, source: str) -> list[str]:
    """Files that are parsed with json itself, which raises RecursionError for nested brackets."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.load", "json.loads"):
            if ".read_" in ast.unparse(node):
                found.append(f"{path}:{node.lineno}: use tasks.files.parse_json")
    return found


def renames(path: str, source: str) -> list[str]:
    """Renames that trust what NFS reports of them."""
    return [
        f"{path}:{node.lineno}: use tasks.files.rename"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (node.func.attr == "rename" or ast.unparse(node.func) == "os.replace")
        and not path.startswith(("tests/", "optim/"))  # optim/ imports nothing of ours
    ]


def too_long(path: str, source: str) -> list[str]:
    lines = len(source.splitlines())
    if Path(path).parts[0] != "scripts" or lines <= LONGEST_SCRIPT:
        return []
    return [f"{path} has {lines} lines, more than {LONGEST_SCRIPT}: move the work to a package"]


def nameless(path: str) -> list[str]:
    if not {Path(path).stem, *Path(path).parts} & set(NAMELESS):
        return []
    return [f"{path}: name a module after what it does"]


def problems(rule) -> list[str]:
    return [p for path in sources() for p in rule(str(path.relative_to(ROOT)), path.read_text())]


def test_every_import_is_allowed():
    found = problems(forbidden_imports)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("engine/step.py", "import torch.optim"),
        ("engine/step.py", "from torch.optim import SGD"),
        ("engine/step.py", "import torch\ntorch.optim.SGD"),
        ("engine/trainer.py", "import torch.distributed as dist"),
        ("tasks/imagenet/task.py", "import torch\ntorch.distributed.get_rank()"),
        ("scripts/train.py", "import hydra"),
        ("launch/run_spec.py", "from hydra import compose"),
        ("launch/sweep.py", "import submitit"),
        ("engine/trainer.py", "import wandb"),
        ("engine/trainer.py", "import wandb_workspaces.reports"),
        ("analysis/page.py", "from matplotlib.figure import Figure"),
        ("tasks/wikitext103/task.py", "from fairseq.models import transformer"),
        ("optim/factory.py", "from engine.config import RunConfig"),
        ("tasks/imagenet/task.py", "from optim import NovoGrad"),
        ("tasks/imagenet/task.py", "from engine import plan"),
        ("tasks/imagenet/task.py", "from tasks.wmt14 import data"),
        ("engine/trainer.py", "from tasks.imagenet.task import ImageNet"),
        ("engine/trainer.py", "from launch.compose import compose"),
        ("launch/estimate.py", "from analysis.records import read_runs"),
        ("launch/study.py", "from scripts.report import main"),
        ("analysis/curves.py", "from engine.config import RunConfig"),
        ("analysis/report.py", "from launch.compose import compose"),
        ("benchmarks/engine.py", "from scripts import launch"),
        ("scripts/demo.py", "from scripts.reproduce import print_tables"),
        ("engine/trainer.py", "from tests.optim import algorithm1"),
    ],
)
def test_an_import_that_is_not_allowed_is_found(path, source):
    assert forbidden_imports(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("engine/trainer.py", "from tasks.base import Task\nfrom optim.factory import KINDS"),
        ("engine/wandb_runs.py", "import wandb"),
        ("tasks/imagenet/task.py", "from tasks.base import Task\nfrom tasks.imagenet import data"),
        ("tasks/wmt14/fairseq_backend.py", "import fairseq"),
        ("launch/compose.py", "import hydra"),
        ("launch/rendezvous.py", "import torch.distributed as dist"),
        ("launch/study.py", "from analysis.trials import Trial"),
        ("analysis/charts_html.py", "import matplotlib"),
        ("optim/factory.py", "import torch.optim\nfrom . import novograd"),
        ("scripts/demo.py", "from launch.run_spec import make_run_spec"),
    ],
)
def test_an_import_that_is_allowed_is_not_found(path, source):
    assert not forbidden_imports(path, source)


def test_nothing_is_unpickled():
    found = problems(unpickles)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "call",
    [
        "pickle.loads(data)",
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "np.load(file, allow_pickle=True)",
    ],
)
def test_a_call_that_unpickles_is_found(call):
    assert unpickles("engine/loading.py", call)
    assert not unpickles("engine/loading.py", "torch.load(file, weights_only=True)")


def test_files_are_parsed_with_parse_json():
    found = problems(parses_json)
    assert not found, "\n".join(found)
    assert parses_json("engine/rows.py", "json.loads(path.read_text())")


def test_files_are_renamed_safely():
    found = problems(renames)
    assert not found, "\n".join(found)
    assert renames("tasks/making.py", "made.rename(root)")


def test_scripts_are_short():
    found = problems(too_long)
    assert not found, "\n".join(found)


def test_a_long_script_is_found():
    assert too_long("scripts/launch.py", "pass\n" * 80)
    assert not too_long("scripts/launch.py", "pass\n" * 79)
    assert not too_long("launch/worker.py", "pass\n" * 80)


def test_modules_are_named_after_what_they_do():
    found = problems(lambda path, _: nameless(path))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", NAMELESS)
def test_a_module_without_a_subject_is_found(name):
    assert nameless(f"engine/{name}.py")
    assert nameless(f"tasks/{name}/text.py")
    assert not nameless("engine/records.py")


def test_every_folder_of_tests_is_a_package():
    """Without __init__.py `import optim` could load tests/optim."""
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert all((folder / "__init__.py").exists() for folder in folders)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_imported_from_this_checkout(package):
    module = __import__(package)
    assert Path(module.__file__ or "").is_relative_to(ROOT / package)
