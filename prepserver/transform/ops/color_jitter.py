"""How `ColorJitter` is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from prepserver.pipeline.ops.color_jitter import ColorJitter
from prepserver.transform import color
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Array, Drawn, Stage, delivered


class ColorJitterStage(Stage):
    op = ColorJitter
    settles = False

    def __init__(self, op: ColorJitter, place: int) -> None:
        super().__init__(op, place)
        self._parts = (
            (color.brightness, op.brightness, 1.0),
            (color.contrast, op.contrast, 1.0),
            (color.saturation, op.saturation, 1.0),
            (color.hue, op.hue, 0.0),
        )

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        # Four factors and their order (a Fisher-Yates shuffle): seven numbers, one block of draws.
        drawn = [
            (change, draws.uniform(*limits), limits == (neutral, neutral)) for change, limits, neutral in self._parts
        ]
        for last in (3, 2, 1):
            other = draws.below(last + 1)
            drawn[last], drawn[other] = drawn[other], drawn[last]
        changes = [(change, factor) for change, factor, off in drawn if not off]
        return Drawn(partial(_jittered, changes) if changes else None, height, width)


def _jittered(
    changes: Sequence[tuple[Callable[[torch.Tensor, float], None], float]], image: Array, into: Array | None
) -> Array:
    pixels = torch.from_numpy(image).permute(2, 0, 1).clone(memory_format=torch.contiguous_format)
    for change, factor in changes:
        change(pixels, factor)
    return delivered(pixels.permute(1, 2, 0).numpy(), into)
