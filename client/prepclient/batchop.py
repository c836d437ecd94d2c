"""What an op on a batch is: the host draws numbers for each row, and tensors on any device are computed with them.

Ops see images as (n, C, H, W), in whichever layout they are stored. A `FloatOp` computes in float32 and can be fused
with its neighbours; a `ByteOp` runs alone. The few numbers per row that an op draws travel with the batch's small
fields.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import Op
from prepserver.pipeline.random_words import SampleKey, eight_words, op_key

FIRST = 1 << 16
"""Place of the first op on a batch. It is beyond all ops of a pipeline, so the two draw different numbers."""

Numbers = npt.NDArray[np.float64]
OpT = TypeVar("OpT", bound=Op)


class RowDraws:
    """Random numbers for each row of a batch, from the same keys as those of a pipeline's ops.

    For each row, `passes` has the number of complete passes before it, and `indices` the index of its sample.
    """

    def __init__(self, seed: int, passes: Sequence[int], indices: Sequence[int], place: int, view: int) -> None:
        self._keys = [SampleKey(seed, pass_, index) for pass_, index in zip(passes, indices, strict=True)]
        self._place, self._view = place, view

    def __len__(self) -> int:
        return len(self._keys)

    def uniform(self, block: int = 0, rows: Sequence[int] | None = None) -> Numbers:
        """Eight numbers in [0, 1) for each row, or for each of `rows`: (rows, 8). Each `block` has other numbers."""
        keys = self._keys if rows is None else [self._keys[row] for row in rows]
        return self._of(keys, self._view, block)

    def of_batch(self) -> list[float]:
        """Eight numbers in [0, 1) for the whole batch, from its first row; the same for all views."""
        numbers: list[float] = self._of(self._keys[:1], 0, 0)[0].tolist()
        return numbers

    def _of(self, keys: Sequence[SampleKey], view: int, block: int) -> Numbers:
        place = op_key(self._place, view)
        words = np.frombuffer(b"".join(eight_words(key, place, block) for key in keys), "<u8")
        numbers = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53  # as in `Draws.uniform` of a worker
        return numbers.reshape(len(keys), 8)


class BatchOp(ABC, Generic[OpT]):
    """How an op is done on a batch: `op` has its parameters, `image` describes the images before it."""

    width: int = 0  # numbers drawn per row

    def __init__(self, op: OpT, image: Image, device: torch.device) -> None:
        self._op = op
        self._image = image
        self._device = device

    @abstractmethod
    def draw(self, rows: RowDraws) -> Numbers:
        """The numbers that decide what happens to each row, (rows, width); they reach the device as float32."""


class FloatOp(BatchOp[OpT]):
    """An op that computes the same formula for all rows, so that torch.compile can fuse it with others."""

    @abstractmethod
    def apply(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """The changed images, (n, C, H, W) float32, by what `draw` gave, (n, width) float32; both arguments stay.

        torch.compile must be able to trace it in one graph.
        """


class ByteOp(BatchOp[OpT]):
    """An op that does different things to different rows, so that it cannot be fused with others."""

    @abstractmethod
    def change(self, images: torch.Tensor, drawn: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        """The changed images; the arguments stay as they are. It must not wait for the device.

        `images` are (n, C, H, W), uint8, n at least 1. `drawn` is what `draw` gave, (n, width), float32, and `known`
        has the same numbers in host memory.
        """


class Linear(NamedTuple):
    """``x / divisor + offset``, each with one number for all channels or one per channel."""

    divisor: Numbers = np.ones(1)
    offset: Numbers = np.zeros(1)

    def over(self, divisor: Sequence[float], offset: Sequence[float]) -> Linear:
        """This function, and then ``(x - offset) / divisor``, as one."""
        return Linear(self.divisor * divisor, (self.offset - offset) / divisor)

    def constants(self, device: torch.device) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Scale and bias for images (n, C, H, W), float32; None for a bias of 0, and both None if nothing changes.

        They are not 0-dim: type promotion ignores 0-dim tensors, and would compute half rows in half precision.
        """
        if not self.offset.any() and (self.divisor == 1.0).all():
            return None, None
        scale, bias = (
            torch.tensor(each, dtype=torch.float32, device=device).reshape(-1, 1, 1)
            for each in (1.0 / self.divisor, self.offset)
        )
        return scale, bias if self.offset.any() else None


class LinearOp(FloatOp[OpT]):
    """An op that is a `Linear`; several that follow each other are computed as one."""

    def __init__(self, op: OpT, image: Image, device: torch.device) -> None:
        super().__init__(op, image, device)
        self._scale, self._bias = self.after(Linear()).constants(device)

    @abstractmethod
    def after(self, linear: Linear) -> Linear:
        """`linear`, and then this op, as one `Linear`."""

    def draw(self, rows: RowDraws) -> Numbers:
        """Draws nothing."""
        return np.empty((len(rows), 0))

    def apply(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """As `FloatOp.apply`."""
        return scaled(images, self._scale, self._bias)


def scaled(images: torch.Tensor, scale: torch.Tensor | None, bias: torch.Tensor | None) -> torch.Tensor:
    """The images with a `Linear` applied, from its `constants`."""
    if scale is None:
        return images
    return images * scale if bias is None else torch.addcmul(bias, images, scale)


def inside(images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """Which pixels of images (n, C, H, W) lie in the rectangle of their row: (n, 1, H, W), bool.

    `drawn` has top, left, bottom and right of each rectangle, (n, 4).
    """
    top, left, bottom, right = drawn.reshape(-1, 4, 1, 1, 1).unbind(1)
    y = torch.arange(images.shape[2], device=images.device).reshape(-1, 1)
    x = torch.arange(images.shape[3], device=images.device)
    return (y >= top) & (y < bottom) & (x >= left) & (x < right)
