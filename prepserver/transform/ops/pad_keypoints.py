"""How `PadKeypoints` is done: the row takes what fits."""

from prepserver.pipeline.ops.pad_keypoints import PadKeypoints
from prepserver.transform.objects import BoxStage, Objects


class PadKeypointsStage(BoxStage[PadKeypoints]):
    def change(self, objects: Objects) -> Objects:
        return objects
