"""Small models and sentences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tasks.wmt14.model import Transformer, TransformerOptions

WORDS = 31
PAD, BEGIN, END, FIRST = 1, 2, 3, 4  # FIRST: what a sentence is made of begins here
EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def options(variant: str, **some: Any) -> TransformerOptions:
    sizes: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2, "d_model": 12, "d_ff": 20}
    sizes |= {"heads": 3, "dropout": 0.0, "vocabulary": WORDS, "variant": variant, "pad": PAD}
    return TransformerOptions(**sizes | some)


def tiny(variant: str, std: float = 0.6, **some: Any) -> Transformer:
    """In float64, for evaluation, and far from the initial weights: every term counts."""
    model = Transformer(options(variant, **some)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std)
    return model


def sentences(*lengths: int) -> tuple[Tensor, Tensor]:
    """Of these lengths in one batch, with words where padding is: nothing may read them."""
    return torch.randint(FIRST, WORDS, (len(lengths), max(lengths))), torch.tensor(lengths)
