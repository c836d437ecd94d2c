"""How `ColorJitter` is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from prepserver.pipeline.ops.color_jitter import ColorJitter
from prepserver.transform import color
from prepserver.transform.chance import shuffled
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Array, Drawn, Stage, delivered

Change = Callable[[Array, float], Array]


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
        # Four factors and their order: seven numbers, one block of draws.
        drawn = [
            (change, draws.uniform(*limits), limits == (neutral, neutral)) for change, limits, neutral in self._parts
        ]
        drawn = [drawn[place] for place in shuffled(len(drawn), draws)]
        changes = [(change, factor) for change, factor, off in drawn if not off]
        return Drawn(partial(_jittered, changes) if changes else None, height, width)


def _jittered(changes: Sequence[tuple[Change, float]], image: Array, into: Array | None) -> Array:
    for change, factor in changes:
        image = change(image, factor)
    return delivered(image, into)
