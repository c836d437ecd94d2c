"""How `RandAugment` is done on a batch: rows that drew the same change are put side by side and changed at once.

Each change gives the bytes that workers give: it has their arithmetic, one kernel per operation, with nothing fused.
"""

from __future__ import annotations

import numpy as np
import torch

from prepclient.batchop import ByteOp, Numbers, RowDraws
from prepclient.device_ops._changes import changes
from prepserver.pipeline.changes import ALL, SIGNED
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.ops.rand_augment import RandAugment

_IS_SIGNED = np.array([name in SIGNED for name in ALL])
_NUMBERS = 8  # per row in a block of `RowDraws.uniform`


class RandAugmentOnBatch(ByteOp[RandAugment]):
    def __init__(self, op: RandAugment, image: Image, device: torch.device) -> None:
        super().__init__(op, image, device)
        self.width = op.num_ops
        assert image.size is not None
        self._changes = changes(op, image.size, device)
        self._variants = [2 * len(names) for names, _ in self._changes]

    def draw(self, rows: RowDraws) -> Numbers:
        """For each change twice its index in `ALL`, plus 1 for a negative magnitude."""
        blocks = [rows.uniform(block) for block in range(-(-2 * self.width // _NUMBERS))]
        numbers = np.concatenate(blocks, axis=1)[:, : 2 * self.width]
        names = np.floor(numbers[:, ::2] * len(ALL))
        drawn: Numbers = 2 * names + (_IS_SIGNED[names.astype(np.intp)] & (numbers[:, 1::2] <= 0.5))
        return drawn

    def change(self, images: torch.Tensor, drawn: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        places = torch.arange(len(images), device=images.device)
        for slot in range(self.width):
            # The device sorts, and the host, which must not wait for it, counts.
            order = drawn[places, slot].argsort(stable=True)
            images, places = images[order].contiguous(), places[order]
            numbers = drawn[places, slot].to(torch.int64)
            counts = known[:, slot].to(torch.int64).bincount(minlength=sum(self._variants))
            sizes = [int(each.sum()) for each in torch.split(counts, self._variants)]
            first = 0
            parts = zip(torch.split(images, sizes), torch.split(numbers, sizes), self._changes, strict=True)
            for part, which, (names, change) in parts:
                if len(part) and change is not None:
                    part.copy_(change(part, which - first))
                first += 2 * len(names)
        return images[places.argsort()]
