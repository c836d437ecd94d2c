"""How `Normalize` is done on a batch."""

from __future__ import annotations

from prepclient.batchop import Linear, LinearOp
from prepserver.pipeline.ops.normalize import Normalize


class NormalizeOnBatch(LinearOp[Normalize]):
    def after(self, linear: Linear) -> Linear:
        return linear.over(self._op.std, self._op.mean)
