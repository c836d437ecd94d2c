"""How `PadKeypoints` is done: the row takes what fits."""

from __future__ import annotations

from prepserver.pipeline.ops.pad_keypoints import PadKeypoints
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Drawn, Stage


class PadKeypointsStage(Stage):
    op = PadKeypoints
    settles = False

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        return Drawn(None, height, width)
