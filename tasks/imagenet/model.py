"""ResNet v2 (He et al., 2016, arXiv 1603.05027) as the paper's reference code builds it.

It differs from torchvision's ResNet-50 (v1): normalisation and ReLU come before each convolution,
nothing but the convolution and the pooling stands in the stem, the projection of a stage's first
block is taken after that block's first ReLU, and weights start from LeCun's truncated normal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.nn import functional as F

STEMS = ("imagenet", "small")
BN_EPS = 1e-5
# Standard deviation of a standard normal cut at ±2: dividing by it restores the variance.
TRUNCATED_STD = 0.87962566103423978


@dataclass
class ResNetOptions:
    """The default is ResNet-50 v2; the `small` stem, 3×3/1 and no pooling, is for small images."""

    stages: list[int] = field(default_factory=lambda: [3, 4, 6, 3])  # blocks of each stage
    width: int = 64  # channels of the stem and of the first stage's 3×3 convolutions
    classes: int = 1000
    bottleneck: bool = True  # 1×1, 3×3, 1×1 with four times the channels; else 3×3, 3×3
    stem: str = "imagenet"
    bn_momentum: float = 0.003  # the weight of new statistics; 0.997 in TensorFlow's words


class ResNet(nn.Module):
    """Images (N, 3, H, W) to logits (N, classes)."""

    def __init__(self, options: ResNetOptions) -> None:
        super().__init__()
        if options.stem not in STEMS:
            raise ValueError(f"ResNet: stem must be one of {STEMS}, not {options.stem!r}")
        if not options.stages or min(options.stages) < 1:
            raise ValueError(f"ResNet: every stage needs a block, not {options.stages!r}")
        if min(options.width, options.classes) < 1:
            raise ValueError(
                f"ResNet: width and classes must be at least 1, not {options.width!r}"
                f" and {options.classes!r}"
            )
        if not 0 < options.bn_momentum <= 1:
            raise ValueError(f"ResNet: bn_momentum must be in (0, 1], not {options.bn_momentum!r}")
        kernel, stride = (7, 2) if options.stem == "imagenet" else (3, 1)
        self.stem = _conv(3, options.width, kernel, stride)
        self.pool = SamePool() if options.stem == "imagenet" else nn.Identity()
        blocks: list[nn.Module] = []
        channels = options.width
        kind = Bottleneck if options.bottleneck else Basic
        for stage, count in enumerate(options.stages):
            width = options.width * 2**stage
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(kind(channels, width, stride, project=i == 0))
                channels = width * kind.expansion
        self.blocks = nn.Sequential(*blocks)
        self.norm = _norm(channels)
        self.head = nn.Linear(channels, options.classes)
        self.apply(_initialise)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = options.bn_momentum

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(self.pool(self.stem(images)))
        x = F.relu(self.norm(x), inplace=True).mean((2, 3))
        logits: Tensor = self.head(x)
        return logits


class _Block(nn.Module):
    """BN → ReLU → body, added to the input or to a projection of its BN → ReLU."""

    expansion: int
    body: nn.Sequential

    def __init__(self, channels: int, width: int, stride: int, project: bool) -> None:
        super().__init__()
        self.norm = _norm(channels)
        out = width * self.expansion
        self.projection = _conv(channels, out, 1, stride) if project else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm(x), inplace=True)
        shortcut = x if self.projection is None else self.projection(active)
        out: Tensor = self.body(active) + shortcut
        return out


class Bottleneck(_Block):
    """The stride is in the 3×3 convolution."""

    expansion = 4

    def __init__(self, channels: int, width: int, stride: int, project: bool) -> None:
        super().__init__(channels, width, stride, project)
        self.body = nn.Sequential(
            _conv(channels, width, 1),
            _norm(width),
            nn.ReLU(inplace=True),
            _conv(width, width, 3, stride),
            _norm(width),
            nn.ReLU(inplace=True),
            _conv(width, width * self.expansion, 1),
        )


class Basic(_Block):
    """The stride is in the first convolution."""

    expansion = 1

    def __init__(self, channels: int, width: int, stride: int, project: bool) -> None:
        super().__init__(channels, width, stride, project)
        self.body = nn.Sequential(
            _conv(channels, width, 3, stride),
            _norm(width),
            nn.ReLU(inplace=True),
            _conv(width, width, 3),
        )


class SamePool(nn.Module):
    """3×3/2 maximum with TensorFlow's SAME padding: ceil(n / 2) outputs.

    An even side is padded by 0 before and 1 after it, an odd one by 1 and 1, with -inf. Torch's
    ceil_mode is that padding after the end, without a padded copy of the input.
    """

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        return F.max_pool2d(x, 3, 2, padding=(height % 2, width % 2), ceil_mode=True)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Symmetric padding at every stride; TensorFlow's SAME would shift those of stride 2."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=BN_EPS)


def _initialise(module: nn.Module) -> None:
    """Variance 1 / fan-in, truncated at two standard deviations; γ = 1 and β = 0 are torch's."""
    if not isinstance(module, nn.Conv2d | nn.Linear):
        return
    fan_in = module.weight[0].numel()
    std = math.sqrt(1 / fan_in) / TRUNCATED_STD
    nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
    if module.bias is not None:
        nn.init.zeros_(module.bias)
