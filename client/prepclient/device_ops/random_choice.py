"""How `RandomChoice` of `MixUp` and `CutMix` is done: one choice for each batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from prepclient.device_ops._mixing import Mixing, MixingOnBatch
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.ops.random_choice import RandomChoice


class RandomChoiceOnBatch(MixingOnBatch):
    op = RandomChoice
    _op: RandomChoice

    def __init__(self, op: Any, image: Image, device: torch.device) -> None:
        super().__init__(op, image, device)
        if not all(isinstance(each, Mixing) for each in op.transforms):
            raise SpecError("transforms", op.transforms, "a batch may choose among MixUp and CutMix")
        self._ends = list(accumulate(op.p or [1.0] * len(op.transforms)))

    def mixings(self) -> Sequence[Any]:
        return self._op.transforms

    def choose(self, number: float) -> Any:
        at = number * self._ends[-1]
        return next(each for each, end in zip(self._op.transforms, self._ends, strict=True) if at < end)
