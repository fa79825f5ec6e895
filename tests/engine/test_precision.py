"""bf16 and fp16 on the CPU: the logic of autocast and of loss scaling."""

from __future__ import annotations

import pytest
import torch

from engine.distributed import Group
from engine.rows import read_rows
from tests.engine.toy import fit, make_trainer, toy_config, weights

ALONE = Group(0, 1, torch.device("cpu"))


def test_bf16_keeps_fp32_parameters_and_stays_close(tmp_path):
    exact, _ = fit(toy_config(tmp_path / "a", hardware__precision="fp32"), ALONE, tmp_path / "a")
    half, _ = fit(toy_config(tmp_path / "b", hardware__precision="bf16"), ALONE, tmp_path / "b")
    for a, b in zip(weights(exact), weights(half), strict=True):
        assert b.dtype == torch.float32
        assert not torch.equal(a, b)
        torch.testing.assert_close(a, b, rtol=0, atol=0.05)


def test_fp16_skips_overflows_and_makes_up_for_them(tmp_path):
    """A skipped step is counted, moves nothing and is not progress: the budget is still spent."""
    config = toy_config(tmp_path, hardware__precision="fp16")
    trainer = make_trainer(config, ALONE, tmp_path)
    calls = 0
    accumulate = trainer.stepper._accumulate

    def overflowing(position, batches):
        nonlocal calls
        calls += 1
        result = accumulate(position, batches)
        if calls in (3, 4):
            next(trainer.module.parameters()).grad.fill_(float("inf"))  # type: ignore[union-attr]
        return result

    trainer.stepper._accumulate = overflowing  # type: ignore[method-assign]
    scale = trainer.scaler.get_scale()
    outcome = trainer.fit()
    assert outcome.status == "finished"
    assert outcome.skipped == 2
    assert calls == 22
    assert trainer.at.position == 22
    assert trainer.at.step == 20
    assert trainer.scaler.get_scale() == scale / 4
    assert read_rows(tmp_path / "metrics.jsonl")[-2]["train/skipped"] == 2
    assert all(w.isfinite().all() for w in weights(trainer))


def test_fp16_gives_up_when_the_scale_is_gone(tmp_path):
    config = toy_config(tmp_path, hardware__precision="fp16", model__explode_at=55)
    trainer = make_trainer(config, ALONE, tmp_path)
    original = trainer.stepper._accumulate

    def broken(position, batches):
        result = original(position, batches)
        next(trainer.module.parameters()).grad.fill_(float("nan"))  # type: ignore[union-attr]
        return result

    trainer.stepper._accumulate = broken  # type: ignore[method-assign]
    outcome = trainer.fit()
    assert outcome.status == "diverged"
    assert "loss scale" in outcome.message


@pytest.mark.parametrize(
    "option", ["channels_last", "deterministic", pytest.param("compile", marks=pytest.mark.slow)]
)
def test_the_machines_options_change_no_result(tmp_path, option):
    plain, _ = fit(toy_config(tmp_path / "a"), ALONE, tmp_path / "a")
    changes = {f"hardware__{option}": True}
    other, _ = fit(toy_config(tmp_path / "b", **changes), ALONE, tmp_path / "b")
    for a, b in zip(weights(plain), weights(other), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
