"""How `RandomCrop` is done: a window of the padded image."""

from prepserver.pipeline.ops.random_crop import RandomCrop
from prepserver.transform.errors import BadSample
from prepserver.transform.geometry import cut
from prepserver.transform.stage import Drawn, Draws, Stage


class RandomCropStage(Stage[RandomCrop]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        op = self._op
        left, top, right, bottom = op.margins(height, width)
        spare_rows = height + top + bottom - op.size[0]
        spare_columns = width + left + right - op.size[1]
        if spare_rows < 0 or spare_columns < 0:
            raise BadSample(
                f"{height}x{width} pixels are too few for RandomCrop({op.size}) (pad_if_needed=True would pad it)"
            )
        row = draws.below(spare_rows + 1) - top
        column = draws.below(spare_columns + 1) - left
        return cut((row, column, *op.size), (height, width), op.padding_mode, op.fill)
