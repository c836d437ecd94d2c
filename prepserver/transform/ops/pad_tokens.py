"""How `PadTokens` is done."""

from typing import Any

import numpy as np

from prepserver.pipeline.ops.pad_tokens import PadTokens
from prepserver.pipeline.record import Columns
from prepserver.transform.errors import BadSample
from prepserver.transform.padding import PadStage
from prepserver.transform.stage import Draws


class PadTokensStage(PadStage[PadTokens]):
    def make(self, values: dict[str, Any], after: Columns, draws: Draws) -> None:
        op, tokens = self._op, values[self._op.column]
        count = len(tokens)
        if count > op.length:
            raise BadSample(f"has {count} {op.column}, more than PadTokens({op.length}): put Truncate before it")
        padded = values[op.column] = np.full(op.length, op.pad, np.int64)
        there = slice(op.length - count, None) if op.side == "left" else slice(count)
        padded[there] = tokens
        self.note(values, op.length, there, count)
