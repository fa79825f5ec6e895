"""NovoGrad behaves like torch's own optimizers wherever those are used."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from optim import ClipGlobalNorm, Larc, NovoGrad, transform_gradients
from tests.optim.implementations import every_implementation, make_novograd, running


def small_model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3)).to(dtype)


def train(model, optimizer, steps, scheduler=None, offset=0):
    for step in range(offset, offset + steps):
        generator = torch.Generator().manual_seed(step)
        dtype = next(model.parameters()).dtype
        x = torch.randn(16, 6, generator=generator).to(dtype)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def assert_same(model, other, **tolerance):
    for a, b in zip(weights(model), weights(other), strict=True):
        if tolerance:
            torch.testing.assert_close(a, b, **tolerance)
        else:
            assert torch.equal(a, b)


@every_implementation
def test_groups_have_their_own_options(implementation):
    together, apart = small_model(), small_model()
    options = [
        {"lr": 0.1, "weight_decay": 0.1, "decay": "update"},
        {"betas": (0.8, 0.9), "amsgrad": True, "grad_averaging": True},
    ]
    halves = [list(together[0].parameters()), list(together[2:].parameters())]
    with running(implementation):
        groups = [{"params": ps, **o} for ps, o in zip(halves, options, strict=True)]
        optimizer = make_novograd(implementation, groups, 0.05)
        train(together, optimizer, 3)
        singles = [
            make_novograd(implementation, list(ps), **{"lr": 0.05, **o})
            for ps, o in zip((apart[0].parameters(), apart[2:].parameters()), options, strict=True)
        ]

        both = SimpleNamespace(
            zero_grad=apart.zero_grad, step=lambda: [single.step() for single in singles]
        )
        train(apart, both, 3)
    assert_same(together, apart)


def test_add_param_group_continues_with_all():
    model = small_model()
    optimizer = NovoGrad(model[0].parameters(), 0.05)
    train(model, optimizer, 2)
    optimizer.add_param_group({"params": list(model[2:].parameters()), "weight_decay": 0.1})
    before = weights(model)
    train(model, optimizer, 2)
    assert all(not torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))


def test_named_parameters_are_remembered():
    model = small_model()
    optimizer = NovoGrad(model.named_parameters(), 0.05)
    assert optimizer.param_groups[0]["param_names"][0] == "0.weight"
    train(model, optimizer, 1)


def test_the_closure_is_evaluated_with_gradients():
    p = nn.Parameter(torch.tensor([3.0]))
    optimizer = NovoGrad([p], 0.5, (0.0, 0.0))

    def closure():
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 9.0
    assert p.item() == pytest.approx(2.5)


@every_implementation
@pytest.mark.parametrize("kind", ["tensor", "scheduler", "tensor_scheduler"])
def test_learning_rates_as_tensors_and_from_schedulers(implementation, kind):
    plain, other = small_model(), small_model()
    rates = [0.1 * 0.5**t for t in range(4)]
    with running(implementation):
        reference = make_novograd(implementation, plain.parameters(), 0.1, weight_decay=0.01)
        for t, rate in enumerate(rates):
            reference.param_groups[0]["lr"] = rate
            train(plain, reference, 1, offset=t)
        lr = torch.tensor(0.1)
        optimizer = make_novograd(
            implementation,
            other.parameters(),
            lr if kind.startswith("tensor") else 0.1,
            weight_decay=0.01,
        )
        if kind == "tensor":
            for t, rate in enumerate(rates):
                lr.fill_(rate)
                train(other, optimizer, 1, offset=t)
        else:
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            train(other, optimizer, 4, scheduler)
    assert_same(plain, other, rtol=1e-6, atol=1e-7)


def test_capturable_keeps_everything_in_tensors_on_the_cpu_too():
    """The way that a CUDA graph takes, on a device where it can be tested."""
    plain, captured = small_model(), small_model()
    train(plain, NovoGrad(plain.parameters(), 0.1, weight_decay=0.01, foreach=True), 3)
    lr = torch.tensor(0.1)
    optimizer = NovoGrad(captured.parameters(), lr, weight_decay=0.01, capturable=True)
    train(captured, optimizer, 3)
    assert_same(plain, captured, rtol=1e-6, atol=1e-7)


@every_implementation
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_go_on_alike(implementation, copier):
    with running(implementation):
        model = small_model()
        optimizer = make_novograd(implementation, model.parameters(), 0.05, weight_decay=0.01)
        train(model, optimizer, 2)
        twin, twin_optimizer = copier((model, optimizer))
        train(model, optimizer, 2, offset=2)
        train(twin, twin_optimizer, 2, offset=2)
    assert_same(model, twin)


def test_states_and_groups_that_lack_keys_are_completed():
    """A state of an older version, or of another NovoGrad, without some options."""
    model = small_model()
    optimizer = NovoGrad(model.parameters(), 0.05)
    train(model, optimizer, 2)
    old = optimizer.state_dict()
    for name in ("decay", "amsgrad", "capturable", "fused", "foreach", "maximize"):
        del old["param_groups"][0][name]
    del old["state"][1]["exp_avg_sq"]
    old["state"][2]["exp_avg_sq"] = old["state"][2]["exp_avg_sq"].reshape(1)
    other = NovoGrad(small_model().parameters(), 0.05)
    other.load_state_dict(old)
    other.param_groups[0]["amsgrad"] = True
    for p in other.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    other.step()
    assert all(s["exp_avg_sq"].shape == () for s in other.state.values())


def test_user_hooks_on_loading_see_and_change_the_state():
    model = small_model()
    optimizer = NovoGrad(model.parameters(), 0.05)
    train(model, optimizer, 1)
    other = NovoGrad(small_model().parameters(), 0.05)

    def double_v(_, given):
        given = copy.deepcopy(given)
        for state in given["state"].values():
            state["exp_avg_sq"] *= 2
        return given

    other.register_load_state_dict_pre_hook(double_v)
    other.load_state_dict(optimizer.state_dict())
    for mine, theirs in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert torch.equal(theirs["exp_avg_sq"], 2 * mine["exp_avg_sq"])


@every_implementation
def test_grad_scaler_unscales_and_skips(implementation):
    """Also where the step itself does both (fused=True)."""
    plain, scaled = small_model(), small_model()
    with running(implementation):
        reference = make_novograd(implementation, plain.parameters(), 0.05, weight_decay=0.01)
        optimizer = make_novograd(implementation, scaled.parameters(), 0.05, weight_decay=0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6)
        for step in range(4):
            x = torch.randn(16, 6, generator=torch.Generator().manual_seed(step))
            overflow = step == 2
            optimizer.zero_grad()
            scaler.scale(scaled(x).square().mean()).backward()
            if overflow:
                scaled[0].weight.grad[0, 0] = torch.inf
            before = copy.deepcopy(optimizer.state_dict())
            scaler.step(optimizer)
            scaler.update()
            if overflow:
                after = optimizer.state_dict()
                for key, state in before["state"].items():
                    for name, value in state.items():
                        assert torch.equal(value, after["state"][key][name])
                continue
            reference.zero_grad()
            plain(x).square().mean().backward()
            reference.step()
    assert scaler.get_scale() == 2.0**9
    assert_same(plain, scaled, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "foreach"), [({}, True), ({"amsgrad": True, "grad_averaging": True}, False)]
)
def test_compiled_step_is_one_graph_and_compiles_once(options, foreach):
    """Whatever the step and the learning rate, which has to be a tensor for that."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    eager, compiled = small_model(), small_model()
    rates = [0.1, 0.1, 0.05, 0.02, 0.01]
    plain = NovoGrad(eager.parameters(), 0.1, foreach=True, weight_decay=0.01, **options)
    lr = torch.tensor(0.1)
    optimizer = NovoGrad(compiled.parameters(), lr, foreach=foreach, weight_decay=0.01, **options)
    # fullgraph=True turns a graph break into an error; aot_eager leaves out code generation only.
    step = torch.compile(optimizer.step, fullgraph=True, backend="aot_eager")
    as_optimizer = SimpleNamespace(step=step, zero_grad=optimizer.zero_grad)
    for t, rate in enumerate(rates):
        plain.param_groups[0]["lr"] = rate
        train(eager, plain, 1, offset=t)
        lr.fill_(rate)
        train(compiled, as_optimizer, 1, offset=t)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert_same(eager, compiled, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -0.1}, "lr must be a number, finite and not negative, not -0.1"),
        ({"lr": float("nan")}, "lr must be a number, finite"),
        ({"lr": float("inf")}, "lr must be a number, finite"),
        ({"lr": "0.1"}, "lr must be a number"),
        ({"lr": torch.ones(2)}, r"Tensor lr must be 1-element, not of shape \(2,\)"),
        ({"betas": 0.9}, "betas must be a pair"),
        ({"betas": (0.9, 0.5, 0.1)}, "betas must be a pair"),
        ({"betas": (1.0, 0.5)}, r"betas\[0\] must be a number, in \[0, 1\), not 1.0"),
        ({"betas": (0.9, -0.1)}, r"betas\[1\] must be"),
        ({"eps": -1e-8}, "eps must be"),
        ({"weight_decay": -1}, "weight_decay must be"),
        ({"weight_decay": True}, "weight_decay must be"),
        ({"decay": "moments"}, r"decay must be one of \('moment', 'update'\), not 'moments'"),
        ({"amsgrad": 1}, "amsgrad must be True or False"),
        ({"fused": "yes"}, "fused must be True, False or None"),
        ({"fused": True, "foreach": True}, "foreach and fused can't both be True"),
    ],
)
def test_bad_arguments_get_one_clear_error(options, message):
    p = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=message):
        NovoGrad([p], **{"lr": 0.1, **options})
    with pytest.raises(ValueError, match=message):
        NovoGrad([{"params": [p], **options}], lr=0.1)


def test_an_unknown_option_of_a_group_is_refused():
    with pytest.raises(ValueError, match=r"unknown option 'weight_deacy'.*did you mean"):
        NovoGrad([{"params": [nn.Parameter(torch.ones(2))], "weight_deacy": 0.1}], lr=0.1)


def test_sparse_gradients_are_refused():
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = NovoGrad(embedding.parameters(), 0.1)
    embedding(torch.tensor([1, 2])).sum().backward()
    message = r"sparse gradients .*\(5, 3\).*sparse=False"
    with pytest.raises(RuntimeError, match=message):
        optimizer.step()
    with pytest.raises(RuntimeError, match=message):
        transform_gradients(optimizer, [ClipGlobalNorm(1.0)])


def test_fused_is_refused_where_there_is_no_kernel():
    p = nn.Parameter(torch.ones(2, device="meta"))
    p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match=r"fused=True.*float32 on meta"):
        NovoGrad([p], 0.1, fused=True).step()


@pytest.mark.parametrize("foreach", [True, False])
def test_meta_tensors_step_without_memory_and_without_a_host_read(foreach):
    """Plans count a model's state so; and a meta tensor has no value to read back to the host."""
    p = nn.Parameter(torch.empty(10**6, 10**6, device="meta"))
    p.grad = torch.empty_like(p)
    lr = torch.empty((), device="meta")
    optimizer = NovoGrad(
        [p], lr, weight_decay=0.1, foreach=foreach, amsgrad=True, grad_averaging=True
    )
    transform_gradients(optimizer, [ClipGlobalNorm(1.0), Larc()])
    optimizer.step()
    assert optimizer.state[p]["exp_avg"].shape == p.shape
