"""How `ToDtype` is done on a batch: all arithmetic is in float32 and rounds once, at the end."""

from __future__ import annotations

from prepclient.batchop import Linear, LinearOp
from prepserver.pipeline.ops.to_dtype import ToDtype


class ToDtypeOnBatch(LinearOp[ToDtype]):
    def after(self, linear: Linear) -> Linear:
        return linear.over((float(self._op.divisor(self._image)),), (0.0,))
