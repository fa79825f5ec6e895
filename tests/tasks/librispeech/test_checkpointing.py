"""Activations that are calculated again on the way back."""

from __future__ import annotations

import torch
from torch import nn

from tasks.librispeech.model import Jasper, JasperOptions

SMALL = JasperOptions(
    repeats=[1, 2, 2, 1, 1],
    kernels=[11, 5, 7, 3, 1],
    widths=[8, 8, 12, 12, 16],
    dropouts=[0.2] * 5,
    features=6,
    classes=5,
)


def test_checkpointed_activations_change_no_number() -> None:
    """Neither loss nor gradients, with dropout, nor the statistics, which count a batch once."""
    torch.manual_seed(1)
    plain = Jasper(SMALL).double()
    saving = Jasper(SMALL, checkpoint_activations=True).double()
    saving.load_state_dict(plain.state_dict())
    features = torch.randn(3, 6, 40, dtype=torch.float64)
    lengths = torch.tensor([40, 33, 21])
    for step in range(2):
        losses = [loss_of(model, features, lengths, seed=step) for model in (plain, saving)]
        assert losses[0] == losses[1]
        for (name, p), q in zip(plain.named_parameters(), saving.parameters(), strict=True):
            assert p.grad is not None
            assert q.grad is not None
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-12, atol=0, msg=name)
        for (name, a), b in zip(plain.named_buffers(), saving.named_buffers(), strict=True):
            assert torch.equal(a, b[1]), name
    counted = {int(b) for name, b in saving.named_buffers() if name.endswith("batches_tracked")}
    assert counted == {2}


def test_checkpointing_keeps_less_for_the_backward_pass() -> None:
    features, lengths = torch.randn(3, 6, 64), torch.tensor([64, 33, 21])
    kept = {}
    for again in (False, True):
        sizes: dict[int, int] = {}

        def pack(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            Jasper(SMALL, checkpoint_activations=again)(features, lengths)
        kept[again] = sum(sizes.values())
    assert kept[True] < kept[False] / 2


def loss_of(model: nn.Module, features: torch.Tensor, lengths: torch.Tensor, seed: int) -> float:
    torch.manual_seed(seed)
    model.zero_grad()
    log_p, _ = model(features, lengths)
    loss = (log_p * torch.linspace(0, 1, log_p.numel()).view(log_p.shape)).sum()
    loss.backward()
    return float(loss.item())
