"""How `ColorJitter` is done on a batch: each row has its own factors, but all rows have the same order of changes.

The formulas are those of torchvision v2 for floats, for values of 0 to 255. The order is brightness, contrast,
saturation, hue: with an order per row, every change would have to be computed in every place.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from prepclient.batchop import FloatOp, Numbers, RowDraws
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.ops.color_jitter import ColorJitter

_TOP = 255.0


class ColorJitterOnBatch(FloatOp[ColorJitter]):
    width = 4

    def __init__(self, op: ColorJitter, image: Image, device: torch.device) -> None:
        super().__init__(op, image, device)
        limits = np.array([op.brightness, op.contrast, op.saturation, op.hue])
        self._least, self._greatest = limits[:, 0], limits[:, 1]
        offsets = torch.tensor((5.0, 3.0, 1.0), dtype=torch.float32, device=device).reshape(3, 1, 1)
        changes: list[tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], float]] = [
            (_brighter, 1.0),
            (_contrasted, 1.0),
            (_saturated, 1.0),
            (partial(_turned, offsets), 0.0),
        ]
        has_colors = (True, True, image.channels == 3, image.channels == 3)
        self._changes = [
            (place, change)
            for place, (change, neutral) in enumerate(changes)
            if has_colors[place] and tuple(limits[place]) != (neutral, neutral)
        ]

    def draw(self, rows: RowDraws) -> Numbers:
        numbers: Numbers = self._least + (self._greatest - self._least) * rows.uniform()[:, :4]
        return numbers

    def apply(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        for place, change in self._changes:
            images = change(images, drawn[:, place].reshape(-1, 1, 1, 1))
        return images


def _brighter(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return (images * factor).clamp(0.0, _TOP)


def _contrasted(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    mean = _grey(images).mean((1, 2, 3), keepdim=True)
    return (images * factor + mean * (1.0 - factor)).clamp(0.0, _TOP)


def _saturated(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return (images * factor + _grey(images) * (1.0 - factor)).clamp(0.0, _TOP)


def _grey(images: torch.Tensor) -> torch.Tensor:
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unsqueeze(1).unbind(2)
    grey: torch.Tensor = red * 0.2989 + green * 0.587 + blue * 0.114
    return grey


def _turned(offsets: torch.Tensor, images: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Images with their hue shifted in HSV, and back by the closed form of `prepserver.transform.color`."""
    value, least = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    spread = value - least
    safe = torch.where(spread == 0.0, 1.0, spread)
    red, green, blue = images.unsqueeze(1).unbind(2)
    sixths = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, (blue - red) / safe + 2.0, (red - green) / safe + 4.0),
    )
    places = torch.remainder(sixths + 6.0 * shift + offsets, 6.0)
    return value - spread * torch.minimum(places, 4.0 - places).clamp(0.0, 1.0)
