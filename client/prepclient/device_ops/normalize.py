"""How `Normalize` is done on a batch."""

from __future__ import annotations

from prepclient.batchop import Line, LineOp
from prepserver.pipeline.ops.normalize import Normalize


class NormalizeOnBatch(LineOp[Normalize]):
    def after(self, line: Line) -> Line:
        return line.over(self._op.std, self._op.mean)
