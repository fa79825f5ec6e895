"""What other implementations get wrong, and users ran into: each case right in every way."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from optim import NovoGrad, native
from optim.norms import squared_norms
from tests.optim.implementations import every_implementation, make_novograd, running


def one_parameter(value, dtype=torch.float32):
    return torch.nn.Parameter(torch.tensor(value, dtype=dtype))


@every_implementation
@pytest.mark.parametrize("eps", [0.0, 1e-8])
def test_zero_gradients_at_first_then_one(implementation, eps):
    """v waits for the first non-zero gradient: no amplification, and no NaN for eps = 0."""
    p = one_parameter([1.0, 1.0])
    with running(implementation):
        optimizer = make_novograd(implementation, [p], 1.0, (0.0, 0.98), eps)
        for _ in range(2):
            p.grad = torch.zeros(2)
            optimizer.step()
            assert p.tolist() == [1.0, 1.0]
        p.grad = torch.tensor([0.0, 1.0])
        optimizer.step()
    assert p.tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert optimizer.state[p]["exp_avg_sq"].item() == 1.0


@every_implementation
def test_averaging_leaves_later_zero_gradients_damped(implementation):
    """Only m_1 is undamped: not the step after a zero gradient that beta2 = 0 makes v forget."""
    p = one_parameter([0.0])
    with running(implementation):
        optimizer = make_novograd(
            implementation, [p], 1.0, (0.9, 0.0), eps=0.0, grad_averaging=True
        )
        moments = []
        for g in (5.0, 0.0, 5.0):
            p.grad = torch.tensor([g])
            optimizer.step()
            moments.append(optimizer.state[p]["exp_avg"].item())
    assert moments == pytest.approx([1.0, 0.9, 0.91])


@every_implementation
def test_the_gradient_is_left_as_it_was(implementation):
    p = one_parameter([1.0, -2.0, 3.0])
    p.grad = torch.tensor([0.5, 0.25, -1.0])
    kept, version = p.grad, p.grad._version
    with running(implementation):
        make_novograd(implementation, [p], 0.1, weight_decay=0.1, maximize=True).step()
    assert p.grad is kept
    assert p.grad._version == version
    assert p.grad.tolist() == [0.5, 0.25, -1.0]


@every_implementation
@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float16, 6e4),  # the square overflows fp16
        (torch.bfloat16, 1e20),  # the square overflows fp32
        (torch.float32, 1e20),
    ],
)
def test_a_huge_gradient_is_a_normal_step(implementation, dtype, size):
    p = one_parameter([0.0] * 4, dtype)
    with running(implementation):
        optimizer = make_novograd(implementation, [p], 1.0, (0.0, 0.25))
        p.grad = torch.full((4,), size, dtype=dtype)
        optimizer.step()
        assert p.tolist() == pytest.approx([-0.5] * 4, rel=1e-2)
        assert optimizer.state[p]["exp_avg_sq"].isfinite()
        # After it the tensor goes on moving, once v has come down (beta2^70 of the largest fp32).
        p.data.zero_()
        for _ in range(80):
            p.grad = torch.ones(4, dtype=dtype)
            optimizer.step()
        assert p.abs().min() > 0.1


@every_implementation
def test_a_tiny_gradient_is_damped_by_eps(implementation):
    """Squares of 1e-25 underflow fp32; eps decides, and nothing becomes infinite."""
    p = one_parameter([0.0] * 4)
    with running(implementation):
        optimizer = make_novograd(implementation, [p], 1.0, (0.0, 0.25), 1e-8)
        for _ in range(2):
            p.data.zero_()
            p.grad = torch.full((4,), 1e-25)
            optimizer.step()
            assert p.tolist() == pytest.approx([-1e-17] * 4)


@pytest.mark.parametrize("compiled", [True, False])
def test_norms_of_large_tensors_keep_their_digits(compiled, monkeypatch):
    """torch's own CPU norm is off by 6e-4 here: fp32 added up naively."""
    if not compiled:
        monkeypatch.setattr(native, "supports", lambda dtype: False)
    elif not native.supports(torch.float32):
        pytest.skip("no C++ compiler")
    x = torch.randn(1 << 24)
    exact = math.fsum(block.double().square().sum().item() for block in x.split(1 << 16))
    assert squared_norms([x]).item() == pytest.approx(exact, rel=1e-12 if compiled else 2e-8)


@every_implementation
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_resume_continues_bit_for_bit(implementation, dtype, tmp_path):
    """`Optimizer.load_state_dict` would cast a half-precision parameter's v."""

    def gradient(step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(step)
        return torch.randn(50, 3, generator=generator).to(dtype)

    def run(optimizer: NovoGrad, p: torch.nn.Parameter, steps: range) -> None:
        for step in steps:
            p.grad = gradient(step)
            optimizer.step()

    options = {"weight_decay": 0.01, "amsgrad": True, "betas": (0.9, 0.98)}
    start = torch.randn(50, 3).to(dtype)
    with running(implementation):
        straight = torch.nn.Parameter(start.clone())
        optimizer = make_novograd(implementation, [straight], 0.02, **options)
        run(optimizer, straight, range(8))

        first = torch.nn.Parameter(start.clone())
        before = make_novograd(implementation, [first], 0.02, **options)
        run(before, first, range(5))
        torch.save(before.state_dict(), tmp_path / "state.pt")
        second = torch.nn.Parameter(first.detach().clone())
        after = make_novograd(implementation, [second], 0.5)  # the state has the options
        after.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        run(after, second, range(5, 8))
    assert torch.equal(straight, second)
    for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
        assert torch.equal(optimizer.state[straight][name], after.state[second][name])
    assert after.state[second]["exp_avg_sq"].dtype == torch.float32


def test_loading_does_not_tie_the_state_to_the_dict():
    p, q = one_parameter([1.0]), one_parameter([1.0])
    optimizer, other = NovoGrad([p], 0.1), NovoGrad([q], 0.1)
    p.grad, q.grad = torch.tensor([2.0]), torch.tensor([3.0])
    optimizer.step()
    other.load_state_dict(optimizer.state_dict())
    other.step()
    assert optimizer.state[p]["exp_avg_sq"].item() == 4.0


def test_a_missing_gradient_leaves_a_parameter_and_its_state_alone():
    p, q = one_parameter([1.0]), one_parameter([1.0])
    optimizer = NovoGrad([p, q], 0.1, weight_decay=0.5)
    p.grad = torch.tensor([1.0])
    optimizer.step()
    assert q.item() == 1.0
    assert q not in optimizer.state


@every_implementation
def test_a_non_finite_gradient_harms_its_own_tensor_only(implementation):
    p, q = one_parameter([1.0, 1.0]), one_parameter([1.0, 1.0])
    with running(implementation):
        optimizer = make_novograd(implementation, [p, q], 0.1)
        p.grad, q.grad = torch.tensor([math.nan, 1.0]), torch.tensor([1.0, 1.0])
        optimizer.step()
    assert p.isnan().any()
    assert q.isfinite().all()


@every_implementation
def test_odd_layouts(implementation):
    """Channels-last, transposed, strided and expanded memory: the values decide, not the layout."""
    plain = torch.randn(4, 6, 5, 3)
    layouts = {
        "channels_last": plain.clone().to(memory_format=torch.channels_last),
        "transposed": plain.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
        "strided": torch.stack([plain, plain], dim=-1)[..., 0],
    }
    gradients = [torch.randn(plain.shape) for _ in range(3)]
    wanted = torch.nn.Parameter(plain.clone())
    with running(implementation):
        reference = make_novograd(implementation, [wanted], 0.1, weight_decay=0.01)
        for g in gradients:
            wanted.grad = g.clone()
            reference.step()
        for name, value in layouts.items():
            for grad_like_param in (True, False):
                p = torch.nn.Parameter(value.clone(memory_format=torch.preserve_format))
                if name == "strided":
                    p = torch.nn.Parameter(torch.stack([plain, plain], dim=-1)[..., 0])
                    assert not p.is_contiguous()
                optimizer = make_novograd(implementation, [p], 0.1, weight_decay=0.01)
                for g in gradients:
                    p.grad = torch.empty_like(p).copy_(g) if grad_like_param else g.clone()
                    optimizer.step()
                torch.testing.assert_close(p, wanted, rtol=1e-6, atol=1e-6)


def test_complex_parameters_are_pairs_of_reals():
    z = torch.nn.Parameter(torch.randn(3, dtype=torch.complex64))
    x = torch.nn.Parameter(torch.view_as_real(z.detach()).clone())
    ours, reals = NovoGrad([z], 0.1, weight_decay=0.1), NovoGrad([x], 0.1, weight_decay=0.1)
    for _ in range(3):
        z.grad = torch.randn(3, dtype=torch.complex64)
        x.grad = torch.view_as_real(z.grad).clone()
        ours.step()
        reals.step()
    torch.testing.assert_close(torch.view_as_real(z.detach()), x.detach())


@every_implementation
def test_mixed_dtypes_in_one_group(implementation):
    params = [
        torch.nn.Parameter(torch.ones(3, dtype=d))
        for d in (torch.float32, torch.bfloat16, torch.float64, torch.float16, torch.float32)
    ]
    with running(implementation):
        optimizer = make_novograd(implementation, params, 0.1, (0.0, 0.25))
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
    for p in params:
        assert p.tolist() == pytest.approx([1 - 0.1 / math.sqrt(3)] * 3, rel=5e-3)


@pytest.mark.parametrize(
    "change",
    [
        "data",
        "shorter_data",
        "transposed_data",
        "state_entry",
        "v_entry",
        "v_max_entry",
        "state_dict_entry",
        "state_cleared",
        "state_storage",
        "grad_missing",
        "grad_layout",
        "grad_dtype",
        "grad_negated",
        "amsgrad",
        "load",
    ],
)
def test_the_short_way_notices_every_change(change):
    """The fused CPU step keeps addresses between steps: none may be used after it has changed."""
    if change == "grad_dtype" and not hasattr(torch.Tensor, "grad_dtype"):
        pytest.skip("this torch keeps gradients in their parameter's dtype")

    def run(fused: bool) -> list[torch.Tensor]:
        torch.manual_seed(5)
        params = [torch.nn.Parameter(torch.randn(5, 5)) for _ in range(3)]
        amsgrad = change == "v_max_entry"
        options: dict[str, Any] = {"fused": True} if fused else {"foreach": True}
        optimizer = NovoGrad(params, 0.1, weight_decay=0.1, amsgrad=amsgrad, **options)
        for step in range(6):
            for p in params:
                p.grad = torch.randn(5, 5)[: p.shape[0]]
            if step == 3:
                p = params[1]
                assert p.grad is not None
                if change == "data":
                    p.data = p.data.clone() * 2
                elif change == "shorter_data":  # the same address
                    p.data, p.grad = p.data[:2], p.grad[:2].clone()
                    for name in ("exp_avg",):
                        optimizer.state[p][name] = optimizer.state[p][name][:2].clone()
                elif change == "transposed_data":  # the same address and size
                    p.data = p.data.t()
                elif change == "v_entry":
                    optimizer.state[p]["exp_avg_sq"] = torch.tensor(100.0)
                elif change == "v_max_entry":
                    optimizer.state[p]["max_exp_avg_sq"] = torch.tensor(1e4)
                elif change == "state_dict_entry":
                    optimizer.state[p] = {"exp_avg": torch.ones(5, 5)}
                elif change == "grad_layout":
                    p.grad = p.grad.t()
                elif change == "grad_dtype":
                    p.grad_dtype = None
                    p.grad = p.grad.double()
                elif change == "grad_negated":
                    p.grad = torch._neg_view(p.grad)
                elif change == "state_entry":
                    optimizer.state[p]["exp_avg"] = torch.zeros(5, 5)
                elif change == "state_cleared":
                    optimizer.state.clear()
                elif change == "state_storage":
                    optimizer.state[p]["exp_avg"].data = torch.ones(5, 5)
                elif change == "grad_missing":
                    p.grad = None
                elif change == "amsgrad":
                    optimizer.param_groups[0]["amsgrad"] = True
                elif change == "load":
                    optimizer.load_state_dict(optimizer.state_dict())
            optimizer.step()
        return [p.detach() for p in params]

    for fused, foreach in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(fused, foreach, rtol=1e-6, atol=1e-6)
