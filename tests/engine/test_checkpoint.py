"""What is saved is what is loaded; what is kept; whose it is; what a file can't make us do."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from engine.checkpoint import CheckpointError
from engine.checkpoint_files import bytes_needed
from optim import NovoGrad
from tests.engine.stores import Lines, best, flip, latest, names, pairs, sign, state_at, store_in


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    else:
        assert a == b or (a != a and b != b)


def model_and(make_optimizer):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    return model, make_optimizer(model.parameters())


def train(model, optimizer, scaler, steps):
    for step in steps:
        x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda p: NovoGrad(p, lr=0.01, weight_decay=0.001),
        lambda p: NovoGrad(p, lr=torch.tensor(0.01), amsgrad=True),
        lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    ],
    ids=["novograd", "novograd_amsgrad", "adamw", "sgd"],
)
def test_a_run_continues_bit_for_bit(folder, make_optimizer):
    model, optimizer = model_and(make_optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    train(model, optimizer, scaler, range(3))
    saved = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": scaler.state_dict(),
        "rng": torch.get_rng_state(),
        "carry": [(torch.zeros(2, 3, dtype=torch.bfloat16), None), None],
    }
    store_in(folder).save(3, saved)
    loaded = store_in(folder).load_latest()
    assert loaded is not None
    assert loaded.step == 3
    assert_same(saved, loaded.state)

    train(model, optimizer, scaler, range(3, 6))
    resumed, optimizer = model_and(make_optimizer)
    scaler = torch.amp.GradScaler("cpu")
    resumed.load_state_dict(loaded.state["model"])
    optimizer.load_state_dict(loaded.state["optimizer"])
    scaler.load_state_dict(loaded.state["scaler"])
    train(resumed, optimizer, scaler, range(3, 6))
    assert_same(model.state_dict(), resumed.state_dict())


def test_every_kind_of_value_comes_back(folder):
    shared = torch.arange(6.0)
    state = {
        "numbers": [0, -1, 10**30, 0.1, float("inf"), float("nan"), True, None],
        "texts": ("", "Äß\n", b"\x00"),
        "nested": {"a": OrderedDict(b=[{}, [], ()]), 3: torch.tensor(2)},
        "types": [torch.float16, torch.device("cpu"), torch.Size([2, 3])],
        "tensors": [shared, shared[2:4], shared.view(2, 3).t(), torch.empty(0), torch.tensor(True)],
        "parameter": nn.Parameter(torch.ones(2)),
    }
    store_in(folder).save(0, state)
    loaded = store_in(folder).load_latest()
    assert loaded is not None
    assert loaded.step == 0
    assert_same(state, loaded.state)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (np.float64(1.5), "numpy.float64"),
        (np.zeros(2), "numpy.ndarray"),
        (random.Random(0), "random.Random"),
        (Path("x"), "PosixPath"),
        (range(3), "builtins.range"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(folder, value, name):
    with pytest.raises(TypeError, match=rf"state\['a'\]\[1\]\['b'\] is a .*{name}"):
        store_in(folder).save(1, {"a": [0, {"b": value}]})
    assert latest(folder) is None


def test_the_manifest_describes_the_file(folder):
    path = store_in(folder).save(1234, state_at(1234))
    assert path == folder / "step-00001234.pt"
    data, content = path.read_bytes(), json.loads(path.with_suffix(".json").read_text())
    assert content["format"] == 1
    assert content["step"] == 1234
    assert content["size"] == len(data)
    assert content["sha256"] == hashlib.sha256(data).hexdigest()
    assert content["fingerprint"] == "f00d"
    assert content["settings"]["optimizer.lr"] == 0.01
    assert torch.load(path, weights_only=True)["step"] == 1234


def test_the_estimate_is_close_and_counts_shared_tensors_once(folder):
    weights = torch.randn(300_000)
    state = {"a": weights, "b": weights[10:20], "c": [torch.ones(3) for _ in range(100)]}
    size = store_in(folder).save(1, state).stat().st_size
    assert size <= bytes_needed(state) <= 1.2 * size


# What is kept


def test_the_last_and_the_best_are_kept(folder):
    store = store_in(folder)
    for step in range(10, 60, 10):
        path = store.save(step, state_at(step), best=step == 20)
        assert path.stat().st_nlink == (2 if step == 20 else 1)
    assert names(folder) == pairs("best", 40, 50)
    assert latest(folder) == 50
    assert best(folder) == 20


@pytest.mark.parametrize("keep", [1, 3])
def test_keep(folder, keep):
    store = store_in(folder, keep=keep)
    for step in range(6):
        store.save(step, state_at(step))
    assert names(folder) == pairs(*range(6 - keep, 6))


def test_keeping_none_is_refused(folder):
    with pytest.raises(ValueError, match="keep must be at least 1, not 0"):
        store_in(folder, keep=0)


def test_the_best_is_a_copy_where_there_are_no_links(folder, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    path = store_in(folder).save(2, state_at(2), best=True)
    assert path.stat().st_nlink == 1
    assert names(folder) == pairs("best", 2)
    assert best(folder) == 2


def test_steps_are_ordered_as_numbers(folder):
    for step in (99_999_999, 100_000_000):
        store_in(folder).save(step, state_at(step))
    assert latest(folder) == 100_000_000


def test_damaged_ones_do_not_count_as_kept(folder):
    store = store_in(folder)
    for step in (1, 2, 3):
        path = store.save(step, state_at(step))
    flip(path, 100)
    store = store_in(folder)
    store.load_latest()
    store.save(4, state_at(4))
    assert names(folder) == pairs(2, 3, 4)
    store.save(5, state_at(5))
    assert names(folder) == pairs(4, 5)


def test_a_damaged_one_is_replaced_when_the_run_comes_by_again(folder):
    store_in(folder).save(1, state_at(1))
    flip(store_in(folder).save(2, state_at(2)), 100)
    assert latest(folder) == 1
    store_in(folder).save(2, state_at(2))
    assert latest(folder) == 2


def test_there_is_none(folder):
    log = Lines()
    assert latest(folder, log) is None
    assert best(folder) is None
    folder.mkdir()
    (folder / "notes.txt").touch()
    assert latest(folder, log) is None
    assert not log


# Whose it is


def test_another_configuration_is_refused_with_what_differs(folder):
    store_in(folder).save(1, state_at(1), best=True)
    settings = {"optimizer.lr": 0.02, "optimizer.betas": [0.95, 0.98], "scale": "mini"}
    other = store_in(folder, fingerprint="beef", settings=settings)
    for load in (other.load_latest, other.load_best):
        with pytest.raises(CheckpointError, match="is of another configuration") as caught:
            load()
        first, *lines = str(caught.value).splitlines()
        assert "f00d → beef" in first
        assert lines == [
            "  optimizer.lr: 0.01 → 0.02",
            '  scale: (absent) → "mini"',
            "  seed: 1 → (absent)",
        ]


@pytest.mark.parametrize(("count", "last"), [(20, "  k19: 0 → 1"), (21, "  … and 2 more")])
def test_at_most_20_differences_are_listed(folder, count, last):
    before = {f"k{i:02}": 0 for i in range(count)}
    store_in(folder, settings=before).save(1, state_at(1))
    other = store_in(folder, fingerprint="beef", settings=dict.fromkeys(before, 1))
    with pytest.raises(CheckpointError) as caught:
        other.load_latest()
    lines = str(caught.value).splitlines()[1:]
    assert len(lines) == 20
    assert lines[-1] == last


def test_another_fingerprint_of_the_same_settings_is_refused(folder):
    store_in(folder).save(1, state_at(1))
    with pytest.raises(CheckpointError, match="no setting that is known here differs"):
        store_in(folder, fingerprint="beef").load_latest()


# What a file can't make us do


class Malicious:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("kind", ["torch", "pickle"])
def test_a_malicious_pickle_is_refused_and_not_run(folder, tmp_path, kind):
    marker, log = tmp_path / "was_run", Lines()
    store_in(folder).save(1, state_at(1))
    path = store_in(folder).save(2, state_at(2))
    if kind == "torch":
        torch.save({"weights": torch.ones(2), "x": Malicious(marker)}, path)
    else:
        path.write_bytes(pickle.dumps(Malicious(marker), protocol=2))
    sign(path)
    assert latest(folder, log) == 1
    assert len(log) == 1
    assert "step-00000002.pt is not used: refused: it asks to run posix.mkdir" in log[0]
    assert not marker.exists()
