"""How `RandomResizedCrop` is done: as in torchvision, from our own random numbers."""

import math
from functools import partial

from prepserver.pipeline.ops.random_resized_crop import RandomResizedCrop
from prepserver.transform.moves import Cut, Scale
from prepserver.transform.resize import resize
from prepserver.transform.scale import scale_for
from prepserver.transform.stage import FIRST, Box, Drawn, Draws, Stage


class RandomResizedCropStage(Stage[RandomResizedCrop]):
    def __init__(self, op: RandomResizedCrop, place: int) -> None:
        super().__init__(op, place)
        self._first = place == FIRST
        self._step = partial(resize, size=op.size, interpolation=op.interpolation)
        self._mirrored = partial(self._step, mirror=True)
        self._log_ratio = (math.log(op.ratio[0]), math.log(op.ratio[1]))

    def most_scale(self, height: int, width: int) -> int:
        return scale_for(height, width, self._op.size) if self._first else 1

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        top, left, rows, columns = self.box(height, width, draws)
        scale = scale_for(rows, columns, self._op.size) if self._first else 1
        if scale > 1:
            # The decoder works at 1/scale, so the part moves by less than `scale` pixels to fit.
            top, left, rows, columns = (number - number % scale for number in (top, left, rows, columns))
        part = Box(top, left, top + rows, left + columns)
        moves = (Cut(top, left, rows, columns), Scale(*self._op.size))
        return Drawn(self._step, *self._op.size, part, self._mirrored, scale, moves)

    def box(self, height: int, width: int, draws: Draws) -> tuple[int, int, int, int]:
        """Return (top, left, height, width) of the part, as `make_params`: ten tries, then the middle.

        `log` and `exp` may differ in the last bit between C libraries; that moves a crop by a pixel once in some 10**12
        samples.
        """
        least, greatest = self._op.scale
        for _ in range(10):
            area = height * width * draws.uniform(least, greatest)
            aspect = math.exp(draws.uniform(*self._log_ratio))
            crop_width = round(math.sqrt(area * aspect))
            crop_height = round(math.sqrt(area / aspect))
            if 0 < crop_width <= width and 0 < crop_height <= height:
                top = draws.below(height - crop_height + 1)
                return top, draws.below(width - crop_width + 1), crop_height, crop_width
        narrow, wide = self._op.ratio
        crop_height, crop_width = height, width
        if width / height < narrow:
            crop_height = max(1, round(width / narrow))
        elif width / height > wide:
            crop_width = max(1, round(height * wide))
        return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width
