"""Random numbers as pure functions of where they are used: (seed, epoch, index), (seed, step)."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def derive_seed(*parts: int | str) -> int:
    """A seed of 63 bits that depends on every part and on their order."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def torch_generator(*parts: int | str) -> torch.Generator:
    """A CPU generator that starts at `derive_seed(*parts)`."""
    import torch

    return torch.Generator().manual_seed(derive_seed(*parts))


def python_random(*parts: int | str) -> random.Random:
    """The same for single numbers, where a call of torch would take longer than the draw."""
    return random.Random(derive_seed(*parts))


def permutation(length: int, *parts: int | str) -> np.ndarray:
    """0 … length-1 in an order that is a function of the parts."""
    return np.random.Generator(np.random.Philox(derive_seed(*parts))).permutation(length)
