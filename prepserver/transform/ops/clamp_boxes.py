"""How `ClampBoxes` is done."""

from dataclasses import replace

from prepserver.pipeline.ops.clamp_boxes import ClampBoxes
from prepserver.transform.objects import BoxStage, Objects, clamped


class ClampBoxesStage(BoxStage[ClampBoxes]):
    def change(self, objects: Objects) -> Objects:
        return replace(objects, boxes=clamped(objects.boxes, objects.size))
