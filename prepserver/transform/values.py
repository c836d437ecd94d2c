"""Stages that change values: colours, grey, element type, normalisation. torchvision v2's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from prepserver.pipeline.ops import ColorJitter, Grayscale, Normalize, ToDtype
from prepserver.transform import color
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Array, Drawn, Stage, delivered


class ColorJitterStage(Stage):
    """ColorJitter: four factors and the order of the four: seven numbers, one block of draws."""

    settles = False

    def __init__(self, op: ColorJitter, place: int) -> None:
        super().__init__(place)
        self._parts = (
            (color.brightness, op.brightness, 1.0),
            (color.contrast, op.contrast, 1.0),
            (color.saturation, op.saturation, 1.0),
            (color.hue, op.hue, 0.0),
        )

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Draw the factors, then shuffle (Fisher and Yates)."""
        drawn = [
            (change, draws.uniform(*limits), limits == (neutral, neutral)) for change, limits, neutral in self._parts
        ]
        for last in (3, 2, 1):
            other = draws.below(last + 1)
            drawn[last], drawn[other] = drawn[other], drawn[last]
        changes = [(change, factor) for change, factor, off in drawn if not off]
        return Drawn(partial(_jittered, changes) if changes else None, height, width)


class GrayscaleStage(Stage):
    """Grayscale."""

    def __init__(self, op: Grayscale, place: int) -> None:
        super().__init__(place)
        self._channels = op.num_output_channels

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Nothing to decide."""
        return Drawn(partial(_grey, self._channels), height, width)


class ToDtypeStage(Stage):
    """ToDtype."""

    def __init__(self, op: ToDtype, place: int) -> None:
        super().__init__(place)
        self._step = partial(_cast, np.dtype(op.dtype), op.scale)

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Nothing to decide."""
        return Drawn(self._step, height, width)


class NormalizeStage(Stage):
    """Normalize."""

    settles = False

    def __init__(self, op: Normalize, place: int) -> None:
        super().__init__(place)
        self._step = partial(_normalized, torch.tensor(op.mean), torch.tensor(op.std))

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Nothing to decide."""
        return Drawn(self._step, height, width)


def _jittered(
    changes: Sequence[tuple[Callable[[torch.Tensor, float], None], float]], image: Array, into: Array | None
) -> Array:
    pixels = torch.from_numpy(image).permute(2, 0, 1).clone(memory_format=torch.contiguous_format)
    for change, factor in changes:
        change(pixels, factor)
    return delivered(pixels.permute(1, 2, 0).numpy(), into)


def _grey(channels: int, image: Array, into: Array | None) -> Array:
    pixels = torch.from_numpy(image).permute(2, 0, 1)
    grey = color.grey(pixels) if pixels.shape[0] == 3 else pixels
    return delivered(grey.expand(channels, -1, -1).permute(1, 2, 0).contiguous().numpy(), into)


def _cast(dtype: np.dtype[Any], scale: bool, image: Array, into: Array | None) -> Array:
    if image.dtype == dtype:
        return image
    result = np.empty(image.shape, dtype) if into is None else into
    values = torch.from_numpy(result).copy_(torch.from_numpy(image))
    if scale and image.dtype == np.uint8:
        values.mul_(1.0 / 255.0)
    return result


def _normalized(mean: torch.Tensor, std: torch.Tensor, image: Array, into: Array | None) -> Array:
    result = np.empty(image.shape, image.dtype) if into is None else into
    source, target = torch.from_numpy(image), torch.from_numpy(result)
    mean, std = mean.to(source.dtype), std.to(source.dtype)
    if image.flags.c_contiguous and result.flags.c_contiguous and len(mean) == len(std) == image.shape[2]:
        # Whole lines at a time: an inner loop over three channels is five times slower.
        height, width, channels = image.shape
        source, target = source.view(height, width * channels), target.view(height, width * channels)
        mean, std = mean.repeat(width), std.repeat(width)
    torch.sub(source, mean, out=target)
    target.div_(std)
    return result
