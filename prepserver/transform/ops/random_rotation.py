"""How `RandomRotation` is done."""

from prepserver.pipeline.affine import affine
from prepserver.pipeline.ops.random_rotation import RandomRotation
from prepserver.transform.stage import Drawn, Draws, Stage
from prepserver.transform.warp import turned_size, warped


class RandomRotationStage(Stage[RandomRotation]):
    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        op, size = self._op, (height, width)
        angle = -draws.uniform(*op.degrees)
        if op.expand:
            size = turned_size(affine((height, width), angle), (height, width))
        matrix = affine((height, width), angle, center=None if op.expand else op.center, size=size)
        return warped(matrix, size, op.interpolation, op.fill)
