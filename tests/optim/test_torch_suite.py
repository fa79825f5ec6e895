"""What torch tests of its own optimizers, on NovoGrad: its OptimizerInfo, our test bodies.

torch.testing's common_optimizers gives the inputs, implementations, schedulers and errors. Where
NovoGrad differs on purpose, `test_torch_suite_exceptions.py` shows the difference and says why.
"""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from optim import NovoGrad
from tests.optim.torch_optimizer_inputs import (
    ERRORS,
    INFO,
    SCHEDULERS,
    OptimizerErrorEnum,
    closure_of,
    every_base_input,
    every_input,
    options,
    weight_and_bias,
)


@every_input
@pytest.mark.parametrize("strided", [False, True])
def test_loss_goes_the_right_way(given, strided):
    params = weight_and_bias(strided)
    optimizer = NovoGrad(params, **options(given))
    closure = closure_of(params, optimizer)
    losses = [optimizer.step(closure).item() for _ in range(20)]
    assert repr(optimizer).startswith("NovoGrad (")
    if given.kwargs.get("maximize"):
        assert losses[-1] > losses[0]
    else:
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("make_schedulers", SCHEDULERS)
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_schedulers_go_the_right_way(make_schedulers, tensor_lr):
    params = weight_and_bias()
    lr = torch.tensor(0.01) if tensor_lr else 0.01
    groups: list[Any] = [{"params": params[:1]}, {"params": params[1:], "lr": 0.02}]
    optimizer = NovoGrad(groups, lr)
    schedulers = [make(optimizer) for make in make_schedulers]
    closure = closure_of(params, optimizer)
    losses = []
    for _ in range(20):
        losses.append(optimizer.step(closure).item())
        for scheduler in schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(losses[-1])
            else:
                scheduler.step()
    assert losses[-1] < losses[0]


@every_base_input
@pytest.mark.parametrize("flag", ["foreach", "fused"])
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_implementations_match_the_loop(given, flag, dtype):
    """With parameters of no elements, of one, and of some without a gradient."""
    shapes = [(10, 5), (), (0,), (7,), (3, 0, 2), (4,)]

    def run(**flags: Any) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        values = [torch.randn(s, generator=generator).to(dtype) for s in shapes]
        params = [nn.Parameter(v) for v in values]
        optimizer = NovoGrad(params, **options(given), **flags)
        for step in range(5):
            for p in params[: 5 + step % 2]:
                p.grad = torch.randn(p.shape, generator=generator).to(dtype)
            optimizer.step()
        moments = [optimizer.state[p]["exp_avg"] for p in params]
        return [*(p.detach() for p in params), *moments]

    eps = torch.finfo(dtype).eps
    for a, b in zip(run(foreach=False, fused=False), run(**{flag: True}), strict=True):
        torch.testing.assert_close(a, b, rtol=8 * eps, atol=8 * eps)


@every_input
def test_zero_gradients_move_nothing_from_the_start(given):
    if given.kwargs.get("weight_decay"):
        return  # decay moves weights, as it does in torch's optimizers
    params = weight_and_bias()
    before = [p.detach().clone() for p in params]
    optimizer = NovoGrad(params, **options(given))
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for p, old in zip(params, before, strict=True):
        assert torch.equal(p, old)


@every_input
def test_missing_gradients_are_no_work_at_all(given):
    params = weight_and_bias()
    optimizer = NovoGrad(params, **options(given))
    optimizer.step()
    assert optimizer.state == {}
    frozen = torch.ones(2)  # requires no gradient
    NovoGrad([frozen], **options(given)).step()
    assert frozen.tolist() == [1.0, 1.0]


@every_input
def test_gradients_are_never_written_to(given):
    params = weight_and_bias()
    optimizer = NovoGrad(params, **options(given))
    closure_of(params, optimizer)()
    before = [(p.grad, p.grad.clone(), p.grad._version) for p in params if p.grad is not None]
    for _ in range(3):
        optimizer.step()
    for p, (grad, values, version) in zip(params, before, strict=True):
        assert p.grad is grad
        assert torch.equal(grad, values)
        assert grad._version == version


@every_input
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "weights_only", "checkpoint"])
def test_saved_states_continue_alike(given, way):
    """State dicts are equal after loading, deterministic, and left as they were."""
    params = weight_and_bias()
    optimizer = NovoGrad(params, **options(given))
    closure = closure_of(params, optimizer)
    for _ in range(3):
        optimizer.step(closure)
    twins = [nn.Parameter(p.detach().clone()) for p in params]
    other = NovoGrad(twins, **options(given))
    state = copy.deepcopy(optimizer.state_dict())
    if way == "deepcopy":
        other.load_state_dict(state)
    elif way == "pickle":
        other.load_state_dict(pickle.loads(pickle.dumps(state)))
    elif way == "weights_only":
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
    else:
        model, twin = nn.ParameterList(params), nn.ParameterList(twins)
        saved = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
        set_optimizer_state_dict(twin, other, saved)
    assert_equal_states(state, optimizer.state_dict())
    assert_equal_states(state, other.state_dict())
    closure_of_twins = closure_of(twins, other)
    for _ in range(3):
        assert optimizer.step(closure).item() == other.step(closure_of_twins).item()
    for p, q in zip(params, twins, strict=True):
        assert torch.equal(p, q)


def assert_equal_states(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a["param_groups"] == b["param_groups"]
    assert a["state"].keys() == b["state"].keys()
    for key, entry in a["state"].items():
        assert entry.keys() == b["state"][key].keys()
        assert all(torch.equal(value, b["state"][key][name]) for name, value in entry.items())


@every_input
def test_states_from_before_a_flag_was_there_load(given):
    params = weight_and_bias()
    optimizer = NovoGrad(params, **options(given))
    closure = closure_of(params, optimizer)
    optimizer.step(closure)
    old = copy.deepcopy(optimizer.state_dict())
    for flag in INFO.not_og_supported_flags:
        del old["param_groups"][0][flag]
    optimizer.load_state_dict(old)
    optimizer.step(closure)
    restored = pickle.loads(pickle.dumps(optimizer))
    for flag in INFO.not_og_supported_flags:
        assert flag in restored.param_groups[0]


def test_copies_have_all_public_attributes():
    optimizer = NovoGrad(weight_and_bias())
    public = {key for key in vars(optimizer) if not key.startswith("_")}
    assert public == {key for key in vars(copy.deepcopy(optimizer)) if not key.startswith("_")}


def test_hooks_are_called_in_order():
    params = weight_and_bias()
    optimizer = NovoGrad(params)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before step"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after step"))
    optimizer.register_state_dict_pre_hook(lambda *_: calls.append("before state"))
    optimizer.register_state_dict_post_hook(lambda *_: calls.append("after state"))
    optimizer.register_load_state_dict_pre_hook(lambda *_: calls.append("before load"))
    optimizer.register_load_state_dict_post_hook(lambda *_: calls.append("after load"))
    optimizer.step(closure_of(params, optimizer))
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == [
        *("before step", "after step", "before state", "after state"),
        *("before load", "after load"),
    ]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.optimizer_error_input.desc)
def test_mistakes_are_torchs(error):
    given = error.optimizer_error_input
    params = weight_and_bias() if given.params is None else given.params
    assert error.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR
    if issubclass(error.error_type, Warning):
        with pytest.warns(error.error_type, match=error.error_regex):
            NovoGrad(params, **given.kwargs)
    else:
        with pytest.raises(error.error_type, match=error.error_regex):
            NovoGrad(params, **given.kwargs)


def test_one_cycle_moves_the_momentum_among_the_betas():
    params = weight_and_bias()
    optimizer = NovoGrad(params)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=10, base_momentum=0.8)
    closure = closure_of(params, optimizer)
    seen = set()
    for _ in range(9):
        optimizer.step(closure)
        scheduler.step()
        seen.add(round(optimizer.param_groups[0]["betas"][0], 6))
        assert optimizer.param_groups[0]["betas"][1] == 0.25
    assert len(seen) > 3
    assert min(seen) == 0.8


def test_parameters_may_change_their_dtype_between_steps():
    params = weight_and_bias()
    optimizer = NovoGrad(params, foreach=True)
    optimizer.step(closure_of(params, optimizer))
    for p in params:
        p.grad, p.data = None, p.data.double()
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert {s["exp_avg"].dtype for s in optimizer.state.values()} == {torch.float64}


def test_no_warnings_in_ordinary_use():
    params = weight_and_bias()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = NovoGrad(params)
        optimizer.step(closure_of(params, optimizer))
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.step()
