"""`RandomChoice`: one of some ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prepserver.pipeline import checks, nested
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.nested import Nesting
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomChoice(Nesting):
    """Apply one of some ops, chosen at random.

    Attributes:
        transforms: As in `RandomApply`.
        p: Weight of each op; None for equal ones.
    """

    transforms: tuple[Op, ...]
    p: tuple[float, ...] | None

    def __init__(self, transforms: Sequence[Op | Mapping[str, Any]], p: Sequence[float] | None = None) -> None:
        ops = nested.transforms(transforms)
        if p is not None:
            p = [checks.number("p", each, 0.0, 1e9) for each in checks.items("p", p, (len(ops),))]
            if sum(p) == 0.0:
                raise SpecError("p", p, "must leave one op to choose")
        self._keep(transforms=ops, p=None if p is None else tuple(p))

    def outcomes(self) -> Sequence[Sequence[Op]]:
        return [(op,) for op in self.transforms]
