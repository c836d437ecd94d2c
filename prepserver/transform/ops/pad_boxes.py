"""How `PadBoxes` is done: the row takes what fits; "largest" chooses first."""

import numpy as np

from prepserver.pipeline.ops.pad_boxes import PadBoxes
from prepserver.transform.objects import BoxStage, Objects


class PadBoxesStage(BoxStage[PadBoxes]):
    def change(self, objects: Objects) -> Objects:
        if self._op.keep == "first" or len(objects.boxes) <= self._op.n:
            return objects
        largest = np.argsort(-objects.areas, kind="stable")[: self._op.n]
        return objects.chosen(np.sort(largest))
