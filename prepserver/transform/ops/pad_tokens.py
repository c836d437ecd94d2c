"""How `PadTokens` is done."""

from typing import Any

import numpy as np

from prepserver.pipeline.ops.pad_tokens import PadTokens
from prepserver.pipeline.record import Columns
from prepserver.transform.errors import BadSample
from prepserver.transform.stage import Draws, RecordStage


class PadTokensStage(RecordStage[PadTokens]):
    def __init__(self, op: PadTokens, place: int) -> None:
        super().__init__(op, place)
        self.makes = tuple(name for name in (op.column, op.mask, op.count) if name is not None)

    def make(self, values: dict[str, Any], after: Columns, draws: Draws) -> None:
        op, tokens = self._op, values[self._op.column]
        count = len(tokens)
        if count > op.length:
            raise BadSample(f"has {count} {op.column}, more than PadTokens({op.length}): put Truncate before it")
        padded = values[op.column] = np.full(op.length, op.pad, np.int64)
        where = slice(op.length - count, None) if op.side == "left" else slice(count)
        padded[where] = tokens
        if op.mask is not None:
            mask = values[op.mask] = np.zeros(op.length, np.uint8)
            mask[where] = 1
        if op.count is not None:
            values[op.count] = count
