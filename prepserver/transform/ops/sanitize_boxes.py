"""How `SanitizeBoxes` is done, by torchvision's conditions."""

from prepserver.pipeline.ops.sanitize_boxes import SanitizeBoxes
from prepserver.transform.objects import BoxStage, Objects, extent


class SanitizeBoxesStage(BoxStage[SanitizeBoxes]):
    def change(self, objects: Objects) -> Objects:
        boxes = objects.boxes
        large = ((boxes[:, 2:] - boxes[:, :2]) >= self._op.min_size).all(1) & (objects.areas >= self._op.min_area)
        within = (boxes >= 0).all(1) & (boxes <= extent(objects.size)).all(1)
        return objects.chosen(large & within)
