"""How `RandomPerspective` is done."""

from prepserver.pipeline.ops.random_perspective import RandomPerspective
from prepserver.transform.chance import ChanceStage
from prepserver.transform.stage import Drawn, Draws
from prepserver.transform.warp import perspective, warped


class RandomPerspectiveStage(ChanceStage[RandomPerspective]):
    def chosen(self, height: int, width: int, draws: Draws) -> Drawn:
        op = self._op
        down, across = (int(op.distortion_scale * (side // 2)) + 1 for side in (height, width))
        corners = [
            (draws.below(across) + right * (width - across), draws.below(down) + below * (height - down))
            for right, below in ((0, 0), (1, 0), (1, 1), (0, 1))
        ]
        matrix = perspective((height, width), corners)
        if matrix is None:
            return Drawn(None, height, width)
        return warped(matrix, (height, width), op.interpolation, op.fill)
