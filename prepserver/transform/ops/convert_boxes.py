"""How `ConvertBoxes` is done, with torchvision's arithmetic."""

import numpy as np

from prepserver.pipeline.ops.convert_boxes import ConvertBoxes
from prepserver.transform.objects import BoxStage, Objects, extent


class ConvertBoxesStage(BoxStage[ConvertBoxes]):
    def change(self, objects: Objects) -> Objects:
        boxes = objects.boxes
        near, far = boxes[:, :2], boxes[:, 2:]
        if self._op.form == "xywh":
            boxes = np.concatenate((near, far - near), 1)
        elif self._op.form == "cxcywh":
            boxes = np.concatenate(((near + far) * np.float32(0.5), far - near), 1)
        if self._op.normalize:
            boxes = boxes / extent(objects.size)
        objects.boxes, objects.form = boxes, self._op.form
        return objects
