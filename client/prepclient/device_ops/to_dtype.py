"""How `ToDtype` is done on a batch: all arithmetic is in float32, and rounded once, at the end."""

from __future__ import annotations

from prepclient.batchop import Line, LineOp
from prepserver.pipeline.ops.to_dtype import ToDtype


class ToDtypeOnBatch(LineOp[ToDtype]):
    def after(self, line: Line) -> Line:
        is_scaled = self._op.scale and self._image.dtype == "uint8" != self._op.dtype
        return line.over((255.0,), (0.0,)) if is_scaled else line
