"""`RandomOrder`: ops in random order."""

from collections.abc import Sequence

from prepserver.pipeline import nested
from prepserver.pipeline.nested import Nesting
from prepserver.pipeline.op import Op


class RandomOrder(Nesting):
    """Apply all of `transforms`, in random order.

    Attributes:
        transforms: As in `RandomApply`.
    """

    def __init__(self, transforms: nested.Ops) -> None:
        self.transforms = nested.transforms(transforms)

    def outcomes(self) -> Sequence[Sequence[Op]]:
        return [(*self.transforms[at:], *self.transforms[:at]) for at in range(len(self.transforms))]
