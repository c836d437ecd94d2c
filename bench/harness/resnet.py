"""ResNet-50 as torchvision has it, for machines that have torch and no torchvision; the weights are random."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    """Three convolutions, and the way around them."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.inner = nn.Sequential(
            *_convolved(channels, width, 1), nn.ReLU(inplace=True),
            *_convolved(width, width, 3, stride), nn.ReLU(inplace=True), *_convolved(width, out, 1),
        )  # fmt: skip
        is_same = channels == out and stride == 1
        self.around = nn.Identity() if is_same else nn.Sequential(*_convolved(channels, out, 1, stride))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(images) + self.around(images))


def resnet50(classes: int = 1000) -> nn.Module:
    """The model: images (n, 3, H, W) to logits (n, classes)."""
    layers: list[nn.Module] = [*_convolved(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            layers.append(Block(channels, width, 1 if number else stride))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def _convolved(channels: int, out: int, side: int, stride: int = 1) -> list[nn.Module]:
    convolution: Any = nn.Conv2d(channels, out, side, stride, side // 2, bias=False)
    return [convolution, nn.BatchNorm2d(out)]
