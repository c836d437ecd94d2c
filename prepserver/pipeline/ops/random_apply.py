"""`RandomApply`: ops for some samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prepserver.pipeline import checks, nested
from prepserver.pipeline.nested import Nesting
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomApply(Nesting):
    """Apply all of some ops, in order, with probability `p`.

    Attributes:
        transforms: The ops, at most 32. They must leave channels and dtype; `Only`, `PluginOp`, `Decode` and `ToLayout`
            cannot be among them.
        p: Probability, 0 to 1.
    """

    transforms: tuple[Op, ...]
    p: float

    def __init__(self, transforms: Sequence[Op | Mapping[str, Any]], p: float = 0.5) -> None:
        self._keep(transforms=nested.transforms(transforms), p=checks.probability(p))

    def outcomes(self) -> Sequence[Sequence[Op]]:
        return [(), self.transforms]
