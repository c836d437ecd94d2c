"""How `ToDtype` is done."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from prepserver.pipeline.ops.to_dtype import ToDtype
from prepserver.transform.draw import Draws
from prepserver.transform.stage import Array, Drawn, Stage


class ToDtypeStage(Stage):
    """ToDtype."""

    op = ToDtype

    def __init__(self, op: ToDtype, place: int) -> None:
        super().__init__(op, place)
        self._step = partial(_cast, np.dtype(op.dtype), op.scale)

    def draw(self, height: int, width: int, draws: Draws) -> Drawn:
        """Nothing to decide."""
        return Drawn(self._step, height, width)


def _cast(dtype: np.dtype[Any], scale: bool, image: Array, into: Array | None) -> Array:
    if image.dtype == dtype:
        return image
    result = np.empty(image.shape, dtype) if into is None else into
    values = torch.from_numpy(result).copy_(torch.from_numpy(image))
    if scale and image.dtype == np.uint8:
        values.mul_(1.0 / 255.0)
    return result
