"""How `ClampBoxes` is done."""

from prepserver.pipeline.ops.clamp_boxes import ClampBoxes
from prepserver.transform.objects import BoxStage, Objects


class ClampBoxesStage(BoxStage[ClampBoxes]):
    def change(self, objects: Objects) -> Objects:
        objects.clamp()
        return objects
