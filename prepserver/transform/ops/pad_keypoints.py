"""How `PadKeypoints` is done: the row takes what fits."""

from __future__ import annotations

from prepserver.pipeline.ops.pad_keypoints import PadKeypoints
from prepserver.transform.objects import BoxStage, Objects


class PadKeypointsStage(BoxStage):
    op = PadKeypoints

    def change(self, objects: Objects) -> Objects:
        return objects
