"""ResNet-18 and -50 as torchvision has them, for machines that have torch and no torchvision; weights are random."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    """Two or three convolutions, and the way around them."""

    def __init__(self, channels: int, width: int, stride: int, *, deep: bool) -> None:
        super().__init__()
        out = 4 * width if deep else width
        if deep:
            layers = [
                *_convolved(channels, width, 1), nn.ReLU(inplace=True),
                *_convolved(width, width, 3, stride), nn.ReLU(inplace=True), *_convolved(width, out, 1),
            ]  # fmt: skip
        else:
            layers = [*_convolved(channels, width, 3, stride), nn.ReLU(inplace=True), *_convolved(width, out, 3)]
        self.inner = nn.Sequential(*layers)
        is_same = channels == out and stride == 1
        self.around = nn.Identity() if is_same else nn.Sequential(*_convolved(channels, out, 1, stride))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(images) + self.around(images))


def resnet18(classes: int = 1000) -> nn.Module:
    """As `resnet50`."""
    return _resnet(classes, (2, 2, 2, 2), deep=False)


def resnet50(classes: int = 1000) -> nn.Module:
    """The model: images (n, 3, H, W) to logits (n, classes)."""
    return _resnet(classes, (3, 4, 6, 3), deep=True)


def _resnet(classes: int, blocks: tuple[int, ...], *, deep: bool) -> nn.Module:
    layers: list[nn.Module] = [*_convolved(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, count in zip((64, 128, 256, 512), blocks, strict=True):
        for number in range(count):
            layers.append(Block(channels, width, 2 if number == 0 and width > 64 else 1, deep=deep))
            channels = 4 * width if deep else width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def _convolved(channels: int, out: int, side: int, stride: int = 1) -> list[nn.Module]:
    convolution: Any = nn.Conv2d(channels, out, side, stride, side // 2, bias=False)
    return [convolution, nn.BatchNorm2d(out)]
