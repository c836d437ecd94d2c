"""How `ToDtype` is done."""

import numpy as np
import torch

from prepserver.pipeline.checks import WHOLE_TOPS
from prepserver.pipeline.ops.to_dtype import ToDtype
from prepserver.transform.stage import Array, ValueStage


class ToDtypeStage(ValueStage[ToDtype]):
    def step(self, image: Array, into: Array | None) -> Array:
        if image.dtype == self._op.dtype:
            return image
        result = np.empty(image.shape, self._op.dtype) if into is None else into
        values = torch.from_numpy(result).copy_(torch.from_numpy(image))
        if self._op.scale and (top := WHOLE_TOPS.get(image.dtype.name)) is not None:
            values.mul_(1.0 / top)
        return result
