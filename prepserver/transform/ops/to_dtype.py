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
        values, pixels = torch.from_numpy(result), torch.from_numpy(image)
        if not self._op.scale or (top := WHOLE_TOPS.get(image.dtype.name)) is None:
            values.copy_(pixels)
        elif top == WHOLE_TOPS["uint8"]:
            values.copy_(pixels).mul_(1.0 / top)
        else:  # float16 cannot hold them before they are scaled
            values.copy_(pixels.to(torch.float32).mul_(1.0 / top))
        return result
