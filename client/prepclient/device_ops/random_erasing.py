"""How `RandomErasing` is done on a batch: each row has its own rectangle."""

from __future__ import annotations

import math

import numpy as np
import torch

from prepclient.batchop import FloatOp, Numbers, RowDraws, inside
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.ops.random_erasing import RandomErasing

_TRIES = 10  # as in torchvision


class RandomErasingOnBatch(FloatOp[RandomErasing]):
    width = 4

    def __init__(self, op: RandomErasing, image: Image, device: torch.device) -> None:
        super().__init__(op, image, device)
        if isinstance(op.value, str):
            raise SpecError("value", op.value, "draws a number for each pixel: put this op into ops")
        self._value = torch.tensor(op.value, dtype=torch.float32, device=device).reshape(-1, 1, 1)

    def draw(self, rows: RowDraws) -> Numbers:
        assert self._image.size is not None
        height, width = self._image.size
        boxes = np.zeros((len(rows), 4))
        numbers = rows.uniform()
        left = np.flatnonzero(numbers[:, 0] < self._op.p)
        for block in range(_TRIES):
            if not len(left):
                break
            if block:
                numbers[left] = rows.uniform(block, left.tolist())
            least, greatest = self._op.scale
            area = height * width * (least + (greatest - least) * numbers[left, 1])
            least, greatest = map(math.log, self._op.ratio)
            aspect = np.exp(least + (greatest - least) * numbers[left, 2])
            tall, wide = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
            fits = (tall < height) & (wide < width)
            top = np.floor(numbers[left, 3] * (height - tall + 1))
            side = np.floor(numbers[left, 4] * (width - wide + 1))
            found = np.stack([top, side, top + tall, side + wide], axis=1)
            boxes[left[fits]] = found[fits]
            left = left[~fits]
        return boxes

    def apply(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        return torch.where(inside(images, drawn), self._value, images)
