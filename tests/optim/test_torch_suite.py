"""What torch tests of its own optimizers, on NovoGrad: its OptimizerInfo, our test bodies.

torch.testing's common_optimizers gives the inputs, implementations, schedulers and errors. Where
NovoGrad differs on purpose, a test under "Exceptions" below shows the difference and says why.
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
    OptimizerErrorEnum,
    OptimizerInfo,
    OptimizerInput,
    all_inputs,
    get_error_inputs_for_all_optims,
    optim_db,
)

no_params: Any = None  # tests make them


def inputs_of_novograd(device: Any, dtype: Any = None) -> list[OptimizerInput]:
    configurations: dict[str, dict[str, Any]] = {
        "default": {},
        "non-default lr": {"lr": 0.1},
        "tensor lr": {"lr": torch.tensor(0.02)},
        "weight decay": {"weight_decay": 0.1},
        "decay at the update": {"weight_decay": 0.1, "decay": "update"},
        "maximize": {"weight_decay": 0.1, "maximize": True},
        "amsgrad": {"weight_decay": 0.1, "amsgrad": True},
        "averaging": {"grad_averaging": True, "betas": (0.9, 0.98)},
    }
    return [OptimizerInput(no_params, k, d) for d, k in configurations.items()]


INFO = OptimizerInfo(
    NovoGrad,  # type: ignore[arg-type]
    optim_inputs_func=inputs_of_novograd,
    optim_error_inputs_func=get_error_inputs_for_all_optims,
    supported_impls=("foreach", "fused"),
    not_og_supported_flags=("foreach", "fused", "maximize", "capturable"),
    has_capturable_arg=True,
    supports_fused_on=("cpu", "cuda"),
)
ALL = [
    *all_inputs("cpu", torch.float32, INFO),  # which leaves foreach to GPUs
    *(
        OptimizerInput(no_params, {**i.kwargs, "foreach": True}, f"{i.desc} & foreach")
        for i in inputs_of_novograd("cpu")
    ),
]
every_input = pytest.mark.parametrize("given", ALL, ids=lambda i: i.desc)
every_base_input = pytest.mark.parametrize("given", inputs_of_novograd("cpu"), ids=lambda i: i.desc)
SCHEDULERS = [s for info in optim_db if info.name in ("SGD", "Adam") for s in info.scheduler_inputs]
ERRORS = get_error_inputs_for_all_optims("cpu", torch.float32)


def weight_and_bias(strided: bool = False) -> list[nn.Parameter]:
    torch.manual_seed(0)
    if strided:
        return [
            nn.Parameter(torch.randn(10, 5, 2)[..., 0]),
            nn.Parameter(torch.randn(10, 2)[..., 0]),
        ]
    return [nn.Parameter(torch.randn(10, 5)), nn.Parameter(torch.randn(10))]


def closure_of(params: list[nn.Parameter], optimizer: Any) -> Any:
    x = torch.randn(5, generator=torch.Generator().manual_seed(1))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (params[0].mv(x) + params[1]).square().sum()
        loss.backward()
        return loss

    return closure


def options(given: OptimizerInput) -> dict[str, Any]:
    own: dict[str, Any] = copy.deepcopy(given.kwargs)
    return own


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


def test_a_learning_rate_is_not_needed():
    """Tools construct optimizers without one."""
    assert NovoGrad(weight_and_bias()).defaults["lr"] == 0.01


@pytest.mark.parametrize("named", [False, True])
def test_a_parameter_that_is_listed_twice_moves_once(named):
    p, q, twin = (nn.Parameter(torch.ones(3)) for _ in range(3))
    listed: Any = [("p", p), ("q", q), ("p", p)] if named else [p, q, p]
    with pytest.warns(UserWarning, match="duplicate parameters"):
        optimizer = NovoGrad(listed, 0.1)
    plain = NovoGrad([twin], 0.1)
    for t in (p, q, twin):
        t.grad = torch.ones(3)
    optimizer.step()
    plain.step()
    assert torch.equal(p, twin)
    assert [id(t) for t in optimizer.param_groups[0]["params"]] == [id(p), id(q)]
    assert optimizer.param_groups[0].get("param_names", ["p", "q"]) == ["p", "q"]
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [("p", p)] if named else [p]})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("capturable", [False, True])
def test_a_refused_fused_step_leaves_no_state(capturable):
    device = "cpu" if capturable else "meta"
    p = nn.Parameter(torch.ones(2, device=device))
    p.grad = torch.ones_like(p)
    optimizer = NovoGrad([p], fused=True, capturable=capturable)
    message = "`fused=True` .*requires .*params .*, not " + ("on cpu" if capturable else "torch")
    with pytest.raises(RuntimeError, match=message):
        optimizer.step()
    assert optimizer.state == {}
    if not capturable:  # materialised, as torch's deferred initialisation does it
        q = nn.Parameter(torch.ones(2))
        q.grad = torch.ones(2)
        optimizer.param_groups[0]["params"] = [q]
        optimizer.step()
        assert (q < 1).all()


@pytest.mark.parametrize("overflow", [False, True])
@pytest.mark.parametrize(
    ("dtype", "clip"),
    [
        (torch.float32, False),
        (torch.float32, True),
        (torch.bfloat16, True),
        (torch.bfloat16, False),
        (torch.float16, False),  # GradScaler.unscale_ refuses fp16 gradients
    ],
)
def test_grad_scaler_leaves_the_gradients_that_fused_adam_leaves(overflow, dtype, clip):
    gradients = []
    for make in (NovoGrad, torch.optim.Adam):
        p = nn.Parameter(torch.ones(3, dtype=dtype))
        optimizer: Any = make([p], lr=0.1, fused=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(torch.ones(()))
        p.grad = torch.full((3,), torch.inf if overflow else 2048.0, dtype=dtype)
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_([p], 1.0)
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (512.0 if overflow else 1024.0)
        assert (p == 1).all().item() == overflow
        gradients.append(p.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=0, equal_nan=True)


def test_a_compiled_function_may_train_and_add_groups():
    """torch keeps dynamo out of zero_grad and add_param_group; so does NovoGrad."""
    torch.compiler.reset()
    params, more = weight_and_bias(), weight_and_bias()
    optimizer = NovoGrad(params, torch.tensor(0.05))
    x = torch.ones(5)

    @torch.compile(backend="eager")
    def train() -> Tensor:
        optimizer.zero_grad()
        loss = (params[0].mv(x) + params[1]).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    losses = [train().item() for _ in range(5)]
    assert losses[-1] < losses[0]

    @torch.compile(backend="eager")
    def grow() -> None:
        optimizer.add_param_group({"params": more, "lr": 0.5})

    grow()
    assert optimizer.param_groups[1]["lr"] == 0.5
    torch.compiler.reset()


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


# Exceptions: where torch's suite assumes what NovoGrad is not.


def test_exception_a_complex_tensor_is_one_layer_not_two():
    """torch compares a complex tensor with its real and imaginary parts as two parameters, which
    holds for pointwise methods; NovoGrad divides by one norm of both."""
    z = nn.Parameter(torch.tensor([3.0 + 4.0j]))
    z.grad = torch.tensor([3.0 + 4.0j])
    optimizer = NovoGrad([z], 1.0, (0.0, 0.0))
    optimizer.step()
    assert optimizer.state[z]["exp_avg_sq"].item() == 25.0
    torch.testing.assert_close(z.detach(), torch.tensor([3.0 + 4.0j]) * 0.8)


def test_exception_there_is_no_step_in_the_state():
    """Nothing is corrected for bias, so steps are not counted: `state["step"]` does not exist."""
    params = weight_and_bias()
    optimizer = NovoGrad(params, amsgrad=True)
    optimizer.step(closure_of(params, optimizer))
    names = {name for state in optimizer.state.values() for name in state}
    assert names == {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}


def test_exception_v_is_a_scalar_in_fp32_whatever_the_parameter():
    """torch expects state of the parameter's shape and dtype."""
    p = nn.Parameter(torch.ones(4, 3, dtype=torch.bfloat16))
    p.grad = torch.ones_like(p)
    optimizer = NovoGrad([p])
    optimizer.step()
    v = optimizer.state[p]["exp_avg_sq"]
    assert v.shape == ()
    assert v.dtype == torch.float32


def test_exception_the_cpu_default_is_fused_not_the_loop():
    """torch's CPU default is the single-tensor loop; NovoGrad's kernel is exact and faster. No
    global switch to foreach is looked at."""
    defaults = NovoGrad(weight_and_bias()).defaults
    assert defaults["foreach"] is None
    assert defaults["fused"] is None


@pytest.mark.parametrize("option", [{"differentiable": True}, {"betas": (torch.tensor(0.9), 0.2)}])
def test_exception_steps_are_not_differentiable_and_betas_are_numbers(option):
    with pytest.raises((TypeError, ValueError)):
        NovoGrad(weight_and_bias(), **option)


def test_exception_sparse_gradients_are_refused():
    """The norm of a sparse gradient is cheap, but momentum and decay make every update dense."""
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = NovoGrad(embedding.parameters())
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse gradients are not supported"):
        optimizer.step()


def test_exception_momentum_is_called_beta1():
    """Schedulers that look for a group's `momentum` find `betas` instead, as with Adam."""
    group = NovoGrad(weight_and_bias()).param_groups[0]
    assert "momentum" not in group
    assert "betas" in group


def test_no_warnings_in_ordinary_use():
    params = weight_and_bias()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = NovoGrad(params)
        optimizer.step(closure_of(params, optimizer))
        optimizer.load_state_dict(optimizer.state_dict())
        optimizer.step()
