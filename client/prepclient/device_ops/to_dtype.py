"""How `ToDtype` is done on a batch: all arithmetic is in float32 and rounds once, at the end."""

from __future__ import annotations

from prepclient.batchop import Linear, LinearOp
from prepserver.pipeline.ops.to_dtype import ToDtype


class ToDtypeOnBatch(LinearOp[ToDtype]):
    def after(self, linear: Linear) -> Linear:
        is_scaled = self._op.scale and self._image.dtype == "uint8" != self._op.dtype
        return linear.over((255.0,), (0.0,)) if is_scaled else linear
