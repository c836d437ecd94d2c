"""`RandomApply`: ops for some samples."""

from collections.abc import Sequence

from prepserver.pipeline import checks, nested
from prepserver.pipeline.nested import Nesting
from prepserver.pipeline.op import Op


class RandomApply(Nesting):
    """Apply all of some ops, in order, with probability `p`.

    Attributes:
        transforms: The ops, at most 32. They must leave channels and dtype; `Only`, `PluginOp`, `Decode` and `ToLayout`
            cannot be among them.
        p: Probability, 0 to 1.
    """

    def __init__(self, transforms: nested.Ops, p: float = 0.5) -> None:
        self.transforms = nested.transforms(transforms)
        self.p = checks.probability(p)

    def outcomes(self) -> Sequence[Sequence[Op]]:
        return [(), self.transforms]
