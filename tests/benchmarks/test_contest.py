"""Turns, ratios and records of benches, on times that are made up."""

from __future__ import annotations

import json
from importlib import import_module

import pytest
import torch

from analysis.folders import ROOT
from analysis.performance import is_reached, read_bench, read_contests
from benchmarks import bench, engine
from benchmarks.contest import (
    BenchOptions,
    Findings,
    compete,
    count_flops,
    judge,
    take_turns,
)
from scripts.bench import main
from tasks import products


def test_everyone_has_a_turn_in_every_round_and_the_order_rotates():
    order: list[str] = []

    def contestant(name: str):
        def run() -> float:
            order.append(name)
            return 1.0

        return run

    rounds = take_turns({name: contestant(name) for name in "abc"}, rounds=2, warm=1)
    assert "".join(order) == "abcbcacab"
    assert rounds == [{"a": 1.0, "b": 1.0, "c": 1.0}] * 2


def test_a_ratio_is_their_time_over_ours_and_noise_is_theirs_over_their_own():
    found = judge("x", [1.0, 2.0, 4.0], [2.0, 3.0, 8.0], [2.0, 5.0, 8.0], amount=10)
    assert found.ratio is not None
    assert found.noise is not None
    assert found.ratio.median == 2.0
    assert (found.ours, found.theirs) == (5.0, 2.5)
    assert (found.noise.low, found.noise.high) == (1.0, 5 / 3)


def test_the_competitor_has_two_turns_of_a_round():
    calls = {"ours": 0, "theirs": 0}

    def count(name: str) -> None:
        calls[name] += 1

    (found,) = compete({"x": lambda: count("ours")}, lambda: count("theirs"), 1, rounds=3, warm=1)
    assert calls == {"ours": 4, "theirs": 8}
    assert found.rounds == 3


def test_flops_of_a_product():
    a = torch.ones(2, 3)
    assert count_flops(lambda: a @ a.t()) == 2 * 2 * 3 * 2


@pytest.mark.parametrize("by_onednn", [True, False])
def test_flops_count_whichever_library_multiplies(monkeypatch, by_onednn):
    monkeypatch.setattr(products, "onednn_is_faster", lambda: by_onednn)
    x = torch.ones(5, 7, 256, requires_grad=True)
    weight = torch.ones(300, 256, requires_grad=True)
    assert weight.numel() >= products.LARGE
    forward = 2 * 5 * 7 * 256 * 300
    assert count_flops(lambda: products.linear(x, weight)) == forward
    assert count_flops(lambda: products.linear(x, weight).sum().backward()) == 3 * forward


def test_a_record_has_the_promise_and_whether_it_is_kept(tmp_path, monkeypatch, capsys):
    found = Findings(
        [
            judge("novograd", [1.0, 1.0], [1.0, 1.0], [1.0, 1.0], amount=1),
            judge("adamw", [1.2, 1.2], [1.0, 1.0], [1.0, 1.0], amount=1),
        ]
    )
    monkeypatch.setattr(engine, "measure", lambda options: found)
    monkeypatch.setattr(bench, "keep_freed_memory", lambda: True)
    assert main(["engine", "--device", "cpu", "--folder", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*/engine.json")
    raw = json.loads(path.read_text())
    first, second = raw["measurements"]
    assert (first["target"], first["reached"]) == (0.97, True)
    assert (second["against"], second["reached"]) == ("a bare training loop", False)
    assert {"commit", "dirty", "machine", "versions", "threads"} <= set(raw)
    record = read_bench(path)
    contest = read_contests()["engine"][1]
    measured = record.find("adamw")
    assert measured is not None
    assert is_reached(contest, measured) is False
    shown = capsys.readouterr().out
    assert "≥ 0.97: not reached" in shown
    assert "sgd could not be measured here" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed"], "there is no bench 'speed'"),
        (["engine", "--device", "tpu9"], "--device must be cpu, cuda"),
        (["engine", "--device", "cuda:99"], "--device cuda:99: there are"),
    ],
)
def test_a_mistake_in_the_command_is_named(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", read_contests())
def test_every_bench_of_the_list_has_a_module_and_a_target_in_make(name):
    assert callable(import_module(f"benchmarks.{name}").measure)
    if read_contests()[name]:
        makefile = (ROOT / "Makefile").read_text()
        assert f"\nbench-{name}: setup ##" in makefile


def test_full_benches_have_more_rounds():
    assert (BenchOptions().rounds(5), BenchOptions(full=True).rounds(5)) == (5, 20)


def test_a_bench_of_the_cpu_does_not_name_a_gpu():
    on_gpu = BenchOptions(torch.device("cuda"), full=True)
    assert bench.on_its_device("wmt", on_gpu) == on_gpu
    assert bench.on_its_device("input", on_gpu) == BenchOptions(torch.device("cpu"), full=True)
    assert set(bench.ON_GPU) <= set(read_contests())
