"""What the speech bench competes with calculates the same as our model and our front end."""

from __future__ import annotations

import torch

from benchmarks.nvidia_jasper import plain_features, plain_forward, plain_loss
from tasks.librispeech.features import log_mel
from tasks.librispeech.loss import ctc
from tasks.librispeech.model import Jasper, JasperOptions

SMALL = JasperOptions(
    repeats=[1, 2, 2, 1, 1],
    kernels=[5, 3, 5, 3, 1],
    widths=[6, 8, 10, 7, 9],
    dropouts=[0.0] * 5,
    features=4,
)


def test_the_same_loss_and_gradients_in_float64():
    torch.manual_seed(0)
    model = Jasper(SMALL).double()
    features, lengths = torch.randn(3, 4, 40).double(), torch.tensor([40, 33, 26])
    targets, target_lengths = torch.randint(0, 28, (3, 5)), torch.tensor([5, 4, 2])
    log_p, out_lengths = model(features, lengths)
    ours = ctc(log_p, out_lengths, targets, target_lengths).total
    gradients = torch.autograd.grad(ours, [*model.parameters()])
    plain_log_p, plain_lengths = plain_forward(model, features, lengths)
    theirs = plain_loss(plain_log_p, plain_lengths, targets, target_lengths)
    assert torch.equal(out_lengths, plain_lengths)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    for one, other in zip(
        gradients, torch.autograd.grad(theirs, [*model.parameters()]), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_the_same_features_in_float64():
    """Of utterances as long as their batch: a shorter one is not reflected at its own end there."""
    audio = torch.randn(3, 4 * 16000 + 7, generator=torch.Generator().manual_seed(0)).double()
    lengths = torch.tensor([audio.shape[1], audio.shape[1], 30000])
    ours, counts = log_mel(audio, lengths)
    theirs, their_counts = plain_features(audio, lengths, dither=0.0)
    assert torch.equal(counts, their_counts.long())
    whole = ours.shape[-1]
    torch.testing.assert_close(ours[:2], theirs[:2, :, :whole], rtol=1e-10, atol=1e-10)
    assert not theirs[:2, :, whole:].any()
