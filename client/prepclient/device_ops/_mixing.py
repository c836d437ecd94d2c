"""What `MixUp` and `CutMix` share: each row is mixed with the row before it, and labels become soft."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch

from prepclient.batchop import BatchOp, FloatOp, Numbers, OpT, RowDraws, inside
from prepclient.errors import InvalidSpec
from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image, Label
from prepserver.pipeline.op import Op
from prepserver.pipeline.ops.random_choice import RandomChoice
from prepserver.pipeline.record import Columns


class Mixing(Op):
    """An op that mixes the samples of a batch."""

    def __init__(self, num_classes: int, alpha: float = 1.0, labels: str = "label") -> None:
        self.num_classes = checks.integer("num_classes", num_classes, 1, 1 << 20)
        self.alpha = checks.number("alpha", alpha, 1e-6, 1e6)  # of the Beta distribution
        self.labels = checks.name("labels", labels)  # the column that becomes soft

    def after(self, columns: Columns) -> Columns:
        if not isinstance(columns.get(self.labels), Label):
            raise SpecError("labels", self.labels, f"is no column of labels; a sample has {', '.join(columns)}")
        others = [name for name, kind in columns.items() if kind.is_spatial and not isinstance(kind, Image)]
        if others or sum(isinstance(kind, Image) for kind in columns.values()) != 1:
            reason = f"mixes samples of one image and a label; a sample has {', '.join(columns)}"
            raise SpecError("op", type(self).__name__, reason)
        return columns

    @abstractmethod
    def decide(self, numbers: Sequence[float], height: int, width: int) -> Mixed:
        """How to mix a batch of images of `height` x `width`; `numbers` are random, in [0, 1)."""


class Mixed(NamedTuple):
    """How the rows of a batch are mixed."""

    label: float  # weight of a row's own label
    outside: float  # weight of a row's own pixels outside the rectangle; inside it has none
    top: int = 0  # first row of the rectangle, in pixels
    left: int = 0  # first column
    bottom: int = 0  # one past its last row
    right: int = 0  # one past its last column


class MixingOnBatch(FloatOp[OpT]):
    """Mixes each row with the row before it, and the first with the last, as torchvision does by ``roll(1, 0)``.

    For a `RandomChoice`, one of its ops is done to the whole batch.
    """

    width = len(Mixed._fields)

    def __init__(self, op: OpT, image: Image, device: torch.device) -> None:
        super().__init__(op, image, device)
        given, weights = (op.transforms, op.p) if isinstance(op, RandomChoice) else ((op,), None)
        self.mixings = [each for each in given if isinstance(each, Mixing)]
        if len(self.mixings) < len(given):
            raise SpecError("transforms", given, "a batch may choose among MixUp and CutMix")
        self._ends = list(accumulate(weights or [1.0] * len(given)))

    def draw(self, rows: RowDraws) -> Numbers:
        if not len(rows):
            return np.empty((0, self.width))
        assert self._image.size is not None
        *numbers, choice = rows.of_batch()
        at = choice * self._ends[-1]
        chosen = next(each for each, end in zip(self.mixings, self._ends, strict=True) if at < end)
        return np.tile(np.array(chosen.decide(numbers, *self._image.size), np.float64), (len(rows), 1))

    def apply(self, images: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        own = drawn[:, 1].reshape(-1, 1, 1, 1)
        # An index, not a roll: the compiler reads it where it is needed, and needs no kernel of its own.
        others = images[torch.arange(len(images), device=images.device) - 1]
        return torch.where(inside(images, drawn[:, 2:]), others, others * (1.0 - own) + images * own)


class SoftLabels:
    """Turns the labels of a column into weights of classes.

    `places` are the indices, in order, of the numbers drawn per row that are the weight of a row's own label.
    """

    def __init__(self, column: str, num_classes: int, places: Sequence[int]) -> None:
        self.column, self._num_classes, self._places = column, num_classes, places

    @classmethod
    def of(cls, ops: Sequence[BatchOp[Any]]) -> SoftLabels | None:
        """How the ops of a batch make labels soft, or None; raises `SpecError` if their classes or columns differ."""
        found, begin = [], 0
        for op in ops:
            if isinstance(op, MixingOnBatch):
                found += [(mixing.labels, mixing.num_classes, begin) for mixing in op.mixings]
            begin += op.width
        if not found:
            return None
        if len({each[:2] for each in found}) > 1:
            given = [each[:2] for each in found]
            raise SpecError("num_classes", given, "all ops that mix need the same num_classes and labels")
        column, num_classes, _ = found[0]
        return cls(column, num_classes, sorted({each[2] for each in found}))

    def check(self, scalars: Mapping[str, torch.Tensor]) -> None:
        """Raises `InvalidSpec` unless all labels are below `num_classes`. A row without a sample has -1, no class."""
        labels = scalars[self.column]
        greatest = int(labels.max()) if len(labels) else -1
        if greatest >= self._num_classes:
            reason = (
                f"a batch has the label {greatest} in {self.column!r}; num_classes must be above the greatest label"
            )
            raise InvalidSpec(f"num_classes = {self._num_classes}: {reason}", "num_classes")

    def empty(self, labels: torch.Tensor) -> torch.Tensor:
        """Uninitialised memory for the weights of `labels`."""
        return torch.empty((len(labels), self._num_classes), dtype=torch.float32, device=labels.device)

    def __call__(self, labels: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """The weights (n, num_classes), float32, for labels (n,) and the numbers that the ops drew."""
        classes = torch.arange(self._num_classes, device=labels.device)
        soft = (labels.reshape(-1, 1) == classes).to(torch.float32)
        for place in self._places:
            own = drawn[:, place : place + 1]
            soft = soft.roll(1, 0) * (1.0 - own) + soft * own
        return soft


def beta(alpha: float, first: float, second: float) -> float:
    """A number of the distribution Beta(alpha, alpha), from two numbers in [0, 1).

    It is Devroye's formula for the symmetric case (Random variate generation in one line of code, 1996), arranged so
    that small alphas do not overflow. It rejects nothing, so every batch takes exactly two numbers.
    """
    turn = math.cos(2.0 * math.pi * second)
    power = (1.0 - first) ** (1.0 / alpha)
    share = (1.0 - power) * turn * turn
    return 0.5 + math.copysign(0.5, turn) * math.sqrt(share / (power + share)) if share else 0.5
