"""How `SanitizeBoxes` is done, by torchvision's conditions."""

from __future__ import annotations

import numpy as np

from prepserver.pipeline.ops.sanitize_boxes import SanitizeBoxes
from prepserver.transform.objects import BoxStage, Objects


class SanitizeBoxesStage(BoxStage):
    op = SanitizeBoxes
    _op: SanitizeBoxes

    def change(self, objects: Objects) -> Objects:
        boxes, (height, width) = objects.boxes, objects.size
        large = ((boxes[:, 2:] - boxes[:, :2]) >= self._op.min_size).all(1) & (objects.areas >= self._op.min_area)
        within = (boxes >= 0).all(1) & (boxes <= np.float32([width, height, width, height])).all(1)
        return objects.chosen(large & within)
