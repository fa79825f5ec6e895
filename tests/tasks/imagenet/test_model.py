"""ResNet v2 as the paper has it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tasks.imagenet.model import Bottleneck, ResNet, ResNetOptions, SamePool


def test_resnet50_has_the_papers_size():
    with torch.device("meta"):
        model = ResNet(ResNetOptions())
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
    parameters = list(model.parameters())
    assert sum(p.numel() for p in parameters) == 25_549_352
    assert len(parameters) == 153
    strided = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.stride == (2, 2)]
    assert Counter(m.kernel_size for m in strided) == {(7, 7): 1, (3, 3): 3, (1, 1): 3}
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {(m.momentum, m.eps) for m in norms} == {(0.003, 1e-5)}


def test_small_and_basic_variants():
    model = ResNet(ResNetOptions([2, 1], width=8, classes=7, bottleneck=False, stem="small"))
    assert model(torch.zeros(2, 3, 9, 12)).shape == (2, 7)
    assert model.blocks(model.stem(torch.zeros(1, 3, 8, 8))).shape == (1, 16, 4, 4)


def test_wrong_options_are_named():
    with pytest.raises(ValueError, match=r"stem must be one of .* not 'large'"):
        ResNet(ResNetOptions(stem="large"))
    with pytest.raises(ValueError, match=r"every stage needs a block, not \[3, 0\]"):
        ResNet(ResNetOptions(stages=[3, 0]))
    with pytest.raises(ValueError, match="width and classes must be at least 1, not 0"):
        ResNet(ResNetOptions(width=0))


@pytest.mark.parametrize("height", [1, 2, 3, 7, 8, 112])
@pytest.mark.parametrize("width", [4, 5])
def test_pooling_is_tensorflows_same(height: int, width: int):
    """Outputs ceil(n / 2); of the padding the smaller half stands before the image."""

    def padding(n: int) -> tuple[int, int]:
        total = max((math.ceil(n / 2) - 1) * 2 + 3 - n, 0)
        return total // 2, total - total // 2

    x = torch.randn(2, 3, height, width) - 5  # a padding of 0 would show
    expected = F.max_pool2d(F.pad(x, padding(width) + padding(height), value=-math.inf), 3, 2)
    assert torch.equal(SamePool()(x), expected)
    assert padding(112) == (0, 1)


def test_a_block_projects_after_its_first_relu():
    block = Bottleneck(6, 3, 2, project=True).double().eval()
    x = torch.randn(2, 6, 5, 5, dtype=torch.float64)
    p, a, b, c = (m.weight for m in block.modules() if isinstance(m, nn.Conv2d))
    norm = math.sqrt(1 + 1e-5)  # of fresh statistics: mean 0, variance 1
    active = F.relu(x / norm)
    y = F.relu(F.conv2d(active, a) / norm)
    y = F.relu(F.conv2d(F.pad(y, (1, 1, 1, 1)), b, stride=2) / norm)
    expected = F.conv2d(y, c) + F.conv2d(active, p, stride=2)
    torch.testing.assert_close(block(x), expected)


def test_weights_start_from_lecuns_truncated_normal():
    model = ResNet(ResNetOptions(stages=[1, 1], classes=200))
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            values, std = module.weight.detach().flatten(), module.weight[0].numel() ** -0.5
            # Standard errors of a mean and of a deviation; four of them.
            assert abs(values.mean()) < 4 * std / math.sqrt(len(values))
            assert abs(values.std() / std - 1) < 4 / math.sqrt(2 * len(values))
            assert 1.9 * std < values.abs().max() * 0.8796256610 <= 2.0001 * std
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
    assert (model.head.bias == 0).all()


def timms(ours: ResNet) -> Any:
    """timm's ResNet v2 with our weights and statistics, and TensorFlow's pooling."""
    from timm.layers import BatchNormAct2d, create_conv2d  # here, because it takes seconds
    from timm.models.resnetv2 import ResNetV2

    theirs: Any = ResNetV2(
        layers=(2, 1, 2),
        channels=(32, 64, 128),
        stem_chs=8,
        num_classes=7,
        conv_layer=create_conv2d,
        norm_layer=BatchNormAct2d,
    ).double()
    theirs.stem.pool = SamePool()
    blocks = [block for stage in theirs.stages for block in stage.blocks]
    pairs: list[tuple[Any, nn.Module]]
    pairs = [(theirs.stem.conv, ours.stem), (theirs.norm, ours.norm), (theirs.head.fc, ours.head)]
    for their, our in zip(blocks, ours.blocks, strict=True):
        assert isinstance(our, Bottleneck)
        if our.projection is not None:
            pairs.append((their.downsample.conv, our.projection))
        pairs += [(their.norm1, our.norm), (their.conv1, our.body[0]), (their.norm2, our.body[1])]
        pairs += [(their.conv2, our.body[3]), (their.norm3, our.body[4])]
        pairs.append((their.conv3, our.body[6]))
    for their, our in pairs:
        shapes = {key: value.shape for key, value in their.state_dict().items()}
        state = {key: value.view(shapes[key]) for key, value in our.state_dict().items()}
        their.load_state_dict(state)
    copied = sum(p.numel() for their, _ in pairs for p in their.parameters())
    assert copied == sum(p.numel() for p in theirs.parameters())
    return theirs


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("size", [(64, 64), (57, 70)])
def test_outputs_and_gradients_are_timms(training: bool, size: tuple[int, int]):
    """Copied weights, float64; the gradient of the images goes through every layer."""
    torch.manual_seed(0)
    ours = ResNet(ResNetOptions([2, 1, 2], width=8, classes=7)).double()
    for module in ours.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                assert tensor is not None
                nn.init.uniform_(tensor, 0.5, 1.5)
    theirs = timms(ours)
    images = torch.randn(3, 3, *size, dtype=torch.float64)
    results = []
    for model in (ours, theirs):
        x = images.clone().requires_grad_()
        logits = model.train(training)(x)
        (gradient,) = torch.autograd.grad(logits.square().sum(), x)
        results.append((logits.detach(), gradient))
    for found, expected in zip(*results, strict=True):
        scale = expected.abs().max()
        assert (found - expected).abs().max() < 1e-13 * scale
