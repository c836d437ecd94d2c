"""`RandomChoice`: one of several ops."""

from collections.abc import Sequence

from prepserver.pipeline import checks, nested
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.nested import Nesting
from prepserver.pipeline.op import Op

_LEAST_SUM = 1e-9  # numbers near the smallest float have too few bits to draw among them


class RandomChoice(Nesting):
    """Apply one of `transforms`, chosen at random.

    Attributes:
        transforms: As in `RandomApply`.
        p: Weight of each op, 0 or more, in any unit; None for equal weights.
    """

    def __init__(self, transforms: nested.Ops, p: checks.Floats | None = None) -> None:
        self.transforms = nested.transforms(transforms)
        if p is not None:
            p = [checks.number("p", each, 0.0, 1e9) for each in checks.items("p", p, (len(self.transforms),))]
            if sum(p) < _LEAST_SUM:
                raise SpecError("p", p, f"must leave one op to choose: their sum must be at least {_LEAST_SUM:g}")
        self.p = None if p is None else tuple(p)

    def outcomes(self) -> Sequence[Sequence[Op]]:
        return [(op,) for op in self.transforms]
