"""How `PadArray` is done."""

from typing import Any

import numpy as np

from prepserver.pipeline.ops.pad_array import PadArray
from prepserver.pipeline.record import Columns
from prepserver.transform.errors import BadSample
from prepserver.transform.padding import PadStage
from prepserver.transform.stage import Draws


class PadArrayStage(PadStage[PadArray]):
    def make(self, values: dict[str, Any], after: Columns, draws: Draws) -> None:
        op, array = self._op, values[self._op.column]
        padded = np.full(op.shape, op.value, after[op.column].stored()[1])
        if array.size:  # an empty list has no inner shape
            if not op.holds(array.shape):
                remedy = ": put Truncate before it" if array.ndim and op.holds((1, *array.shape[1:])) else ""
                raise BadSample(f"has {op.column} of the shape {array.shape}, and PadArray({op.shape}) follows{remedy}")
            padded[tuple(map(slice, array.shape))] = array
        values[op.column] = padded
        count = len(array) if array.size else 0
        self.note(values, op.shape[0], slice(count), count)
