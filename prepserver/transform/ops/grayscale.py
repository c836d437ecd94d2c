"""How `Grayscale` is done."""

from prepserver.pipeline.ops.grayscale import Grayscale
from prepserver.transform import color
from prepserver.transform.stage import Array, ValueStage, delivered


class GrayscaleStage(ValueStage[Grayscale]):
    def step(self, image: Array, into: Array | None) -> Array:
        return delivered(color.grey(image, self._op.num_output_channels), into)
