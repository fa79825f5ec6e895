"""Algorithm 1 of the paper and its variants in NumPy float64, written from the text alone.

Tensor by tensor and step by step, with nothing shared with `optim`. Read as the recipes read it:
the first step uses v_1 = |g_1|^2 and m_1 = g_1 / (sqrt(v_1) + eps) + d w_1 and does update w;
while a tensor's gradients are zero from the start, v is not set.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass
class Algorithm1:
    weights: list[Array]
    lr: float
    beta1: float = 0.95
    beta2: float = 0.25
    eps: float = 1e-8
    weight_decay: float = 0.0
    grad_averaging: bool = False
    amsgrad: bool = False
    decay: str = "moment"
    maximize: bool = False
    m: list[Array] = field(default_factory=list)
    v: list[float | None] = field(default_factory=list)
    v_hat: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.weights = [np.array(w, dtype=np.float64) for w in self.weights]
        self.m = [np.zeros_like(w) for w in self.weights]
        self.v = [None] * len(self.weights)
        self.v_hat = [0.0] * len(self.weights)

    def step(self, gradients: list[Array | None]) -> None:
        for layer, gradient in enumerate(gradients):
            if gradient is not None:
                self._step_layer(layer, -gradient if self.maximize else gradient)

    def _step_layer(self, layer: int, g: Array) -> None:
        w, d = self.weights[layer], self.weight_decay
        squared_norm = float(np.sum(np.square(g)))
        v_before = self.v[layer]
        if v_before is None:
            v = squared_norm
            first = squared_norm > 0
        else:
            v = self.beta2 * v_before + (1 - self.beta2) * squared_norm
            first = False
        if v_before is not None or first:
            self.v[layer] = v
        if self.amsgrad:
            self.v_hat[layer] = v = max(self.v_hat[layer], v)
        denominator = np.sqrt(v) + self.eps
        update = g / denominator if denominator > 0 else np.zeros_like(g)
        if self.decay == "moment":
            update = update + d * w
        if self.grad_averaging and not first:
            update = (1 - self.beta1) * update
        self.m[layer] = self.beta1 * self.m[layer] + update
        if self.decay == "update":
            self.weights[layer] = w - self.lr * (self.m[layer] + d * w)
        else:
            self.weights[layer] = w - self.lr * self.m[layer]
