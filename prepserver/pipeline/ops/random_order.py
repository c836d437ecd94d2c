"""`RandomOrder`: ops in random order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prepserver.pipeline import nested
from prepserver.pipeline.nested import Nesting
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomOrder(Nesting):
    """Apply all of some ops, in random order.

    Attributes:
        transforms: As in `RandomApply`.
    """

    transforms: tuple[Op, ...]

    def __init__(self, transforms: Sequence[Op | Mapping[str, Any]]) -> None:
        self._keep(transforms=nested.transforms(transforms))

    def outcomes(self) -> Sequence[Sequence[Op]]:
        return [(*self.transforms[at:], *self.transforms[:at]) for at in range(len(self.transforms))]
