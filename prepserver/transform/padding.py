"""The base of stages that fill values of one column up to one size."""

from typing import Any, TypeVar

import numpy as np

from prepserver.pipeline.op import PadOp
from prepserver.transform.stage import RecordStage

PadOpT = TypeVar("PadOpT", bound=PadOp)


class PadStage(RecordStage[PadOpT]):
    """A stage that fills a column up, and says how much of it was there."""

    def __init__(self, op: PadOpT, place: int) -> None:
        super().__init__(op, place)
        self.makes = tuple(name for name in (op.column, op.mask, op.count) if name is not None)

    def note(self, values: dict[str, Any], length: int, there: slice, count: int) -> None:
        """Write the columns beside the filled one: of `length` places, those of `there` hold the `count` values."""
        if self._op.mask is not None:
            mask = values[self._op.mask] = np.zeros(length, np.uint8)
            mask[there] = 1
        if self._op.count is not None:
            values[self._op.count] = count
