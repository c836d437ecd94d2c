"""How `Grayscale` is done."""

from __future__ import annotations

from prepserver.pipeline.ops.grayscale import Grayscale
from prepserver.transform import color
from prepserver.transform.stage import Array, ValueStage, delivered


class GrayscaleStage(ValueStage):
    op = Grayscale
    _op: Grayscale

    def step(self, image: Array, into: Array | None) -> Array:
        return delivered(color.grey(image, self._op.num_output_channels), into)
