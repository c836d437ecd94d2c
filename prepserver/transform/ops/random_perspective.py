"""How `RandomPerspective` is done."""

from __future__ import annotations

from prepserver.pipeline.ops.random_perspective import RandomPerspective
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Drawn, Stage
from prepserver.transform.warp import perspective, warped


class RandomPerspectiveStage(Stage):
    op = RandomPerspective
    _op: RandomPerspective

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        op = self._op
        if draws.uniform() >= op.p:
            return Drawn(None, height, width)
        down, across = (int(op.distortion_scale * (side // 2)) + 1 for side in (height, width))
        corners = [
            (draws.below(across) + right * (width - across), draws.below(down) + below * (height - down))
            for right, below in ((0, 0), (1, 0), (1, 1), (0, 1))
        ]
        matrix = perspective((height, width), corners)
        if matrix is None:
            return Drawn(None, height, width)
        return warped(matrix, (height, width), op.interpolation, op.fill)
