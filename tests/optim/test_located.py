"""Where tensors lie: through DLPack's functions and by asking each, with the same answers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from optim import NovoGrad, native, novograd_cpu
from optim.located import Layouts, Located, locate, locate_one_by_one
from optim.memory import addresses

KERNELS = native.supports(torch.float32)
FILTERS = (4, 3, 2, 2)
EXPECTED = [torch.empty(FILTERS), torch.empty(5), torch.empty(6, 1, 7), torch.empty(0, 3)]


def alike() -> list[Tensor]:
    return [torch.randn_like(t) for t in EXPECTED]


def with_first(other: Tensor) -> list[Tensor]:
    return [other, *alike()[1:]]


def with_last(other: Tensor) -> list[Tensor]:
    return [*alike()[:-1], other]


@pytest.mark.parametrize("ask", [locate, locate_one_by_one])
def test_tensors_of_the_same_layout_are_located(ask):
    layouts = Layouts(EXPECTED)
    for tensors in (
        alike(),
        with_first(torch.randn(5, *FILTERS)[1]),  # a part of another
        [*alike()[:2], torch.randn(1, 6, 7).transpose(0, 1), *alike()[3:]],  # any stride of one
        with_first(nn.Parameter(torch.randn(FILTERS))),
    ):
        assert ask(tensors, torch.float32, layouts) == addresses(tensors)
    scalars = [torch.ones(()), torch.ones(1), torch.ones(3)[1]]
    assert ask(scalars, torch.float32, None) == addresses(scalars)
    assert len(ask([], torch.float32, None)) == 0


@pytest.mark.parametrize("ask", [locate, locate_one_by_one])
@pytest.mark.parametrize(
    "others",
    [
        with_first(torch.randn(4, 3, 4)),
        with_first(torch.randn(4, 3, 2, 3)),
        with_first(torch.randn(FILTERS).to(memory_format=torch.channels_last)),
        with_first(torch.randn(4, 3, 2, 4)[..., ::2]),
        with_first(torch.randn(FILTERS, dtype=torch.float64)),
        with_first(torch.randn(FILTERS, dtype=torch.bfloat16)),
        with_first(torch.zeros(FILTERS, dtype=torch.int32)),
        with_first(torch.randn(FILTERS, device="meta")),
        with_first(torch.randn(FILTERS).to_sparse()),
        with_first(torch._efficientzerotensor(FILTERS)),
        with_last(torch.randn(1, 3)),
    ],
    ids=lambda tensors: f"{tensors[0].dtype}-{tensors[0].device}-{tuple(tensors[0].shape)}",
)
def test_other_tensors_are_not(ask, others):
    layouts = Layouts(EXPECTED)
    assert ask(alike(), torch.float32, layouts) is not None
    assert ask(others, torch.float32, layouts) is None


@pytest.mark.parametrize("ask", [locate, locate_one_by_one])
def test_two_elements_are_no_scalar(ask):
    assert ask([torch.ones(()), torch.ones(2)], torch.float32, None) is None
    assert ask([torch.ones(()), torch.ones(0)], torch.float32, None) is None


@pytest.mark.parametrize("ask", [locate, locate_one_by_one])
def test_tensors_without_memory_of_their_own_are_not_located(ask):
    found = []

    def look(x: Tensor) -> Tensor:
        found.append(ask([x], torch.float32, None))
        return x * 1

    torch.vmap(look)(torch.ones(3))
    torch.func.functionalize(look)(torch.ones(()))
    with FakeTensorMode():
        found.append(ask([torch.ones(())], torch.float32, None))
    assert found == [None, None, None]


def test_what_has_moved_is_noticed():
    tensors = alike()
    located = Located(tensors, torch.float32, Layouts(EXPECTED))
    assert located.is_current()
    tensors[1].add_(1)
    assert located.is_current()
    tensors[1].data = torch.randn(5)
    assert not located.is_current()


def model(memory_format: torch.memory_format) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Flatten())
    for p in net.parameters():
        p.data = p.data.contiguous(memory_format=memory_format) if p.dim() == 4 else p.data
    return net


@pytest.mark.skipif(not KERNELS, reason="no C++ compiler")
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_filters_in_any_order_take_the_short_way_with_the_same_result(memory_format, monkeypatch):
    taken = []
    step = novograd_cpu.SteadyGroup.step

    def count(*args):
        taken.append(step(*args))
        return taken[-1]

    monkeypatch.setattr(novograd_cpu.SteadyGroup, "step", count)
    nets = [model(memory_format) for _ in range(2)]
    optimizers = [NovoGrad(net.parameters(), lr=0.1, weight_decay=0.01) for net in nets]
    images = torch.randn(2, 3, 6, 6).to(memory_format=memory_format)
    for _ in range(4):
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            net(images).square().sum().backward()
            if net is nets[1]:
                optimizer._steady.clear()  # the long way
            optimizer.step()
    assert taken == [True] * 2  # the first step makes the state, the second finds it in place
    for ours, theirs in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.skipif(not KERNELS, reason="no C++ compiler")
def test_parameters_without_gradients_do_not_have_the_group_collected_anew(monkeypatch):
    calls = []
    collect = novograd_cpu.SteadyGroup.of

    def count(*args):
        calls.append(args)
        return collect(*args)

    params: list[Tensor] = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = NovoGrad(params, lr=0.1)
    for number in range(6):
        optimizer.zero_grad()
        used = params if number < 2 else params[:1]
        torch.stack(used).square().sum().backward()
        if number == 2:
            monkeypatch.setattr(novograd_cpu.SteadyGroup, "of", count)
        optimizer.step()
    assert calls == []
