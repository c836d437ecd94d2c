"""`RandomChoice`: one of some ops."""

from collections.abc import Sequence

from prepserver.pipeline import checks, nested
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.nested import Nesting
from prepserver.pipeline.op import Op


class RandomChoice(Nesting):
    """Apply one of some ops, chosen at random.

    Attributes:
        transforms: As in `RandomApply`.
        p: Weight of each op; None for equal ones.
    """

    def __init__(self, transforms: nested.Ops, p: checks.Floats | None = None) -> None:
        self.transforms = nested.transforms(transforms)
        if p is not None:
            p = [checks.number("p", each, 0.0, 1e9) for each in checks.items("p", p, (len(self.transforms),))]
            if sum(p) == 0.0:
                raise SpecError("p", p, "must leave one op to choose")
        self.p = None if p is None else tuple(p)

    def outcomes(self) -> Sequence[Sequence[Op]]:
        return [(op,) for op in self.transforms]
