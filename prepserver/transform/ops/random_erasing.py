"""How `RandomErasing` is done."""

import math
from functools import partial

import numpy as np

from prepserver.pipeline.ops.random_erasing import RandomErasing
from prepserver.transform.chance import ChanceStage
from prepserver.transform.noise import Noise
from prepserver.transform.stage import Array, Box, Drawn, Draws


class RandomErasingStage(ChanceStage[RandomErasing]):
    def __init__(self, op: RandomErasing, place: int) -> None:
        super().__init__(op, place)
        self._log_ratio = (math.log(op.ratio[0]), math.log(op.ratio[1]))

    def chosen(self, height: int, width: int, draws: Draws) -> Drawn:
        for _ in range(10):
            area = height * width * draws.uniform(*self._op.scale)
            aspect = math.exp(draws.uniform(*self._log_ratio))
            rows, columns = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if rows < height and columns < width:
                top, left = draws.below(height - rows + 1), draws.below(width - columns + 1)
                box, key = Box(top, left, top + rows, left + columns), draws.key()
                return Drawn(partial(self._erased, box, key), height, width)
        return Drawn(None, height, width)

    def _erased(self, box: Box, key: int, image: Array, into: Array | None) -> Array:
        result = np.empty(image.shape, image.dtype) if into is None else into
        np.copyto(result, image)
        part = box.of(result)
        if isinstance(self._op.value, str):
            noise = Noise(key)
            made = noise.uniform if part.dtype == np.uint8 else noise.normal
            part[...] = made(part.size).reshape(part.shape)
        else:
            part[...] = self._op.value
        return result
