"""`RandomApply`: ops for some samples."""

from collections.abc import Sequence

from prepserver.pipeline import checks, nested
from prepserver.pipeline.nested import Nesting
from prepserver.pipeline.op import Op


class RandomApply(Nesting):
    """Apply all of `transforms`, in order, with probability `p`.

    Attributes:
        transforms: The ops, 1 to 32, nested at most two deep. They must keep channels and dtype. Ops for one column,
            for boxes or tokens, for several views or several samples cannot be among them, nor can `Decode`,
            `LinearTransformation`, `PluginOp` and `ToLayout`.
        p: Probability, 0 to 1.
    """

    def __init__(self, transforms: nested.Ops, p: float = 0.5) -> None:
        self.transforms = nested.transforms(transforms)
        self.p = checks.probability(p)

    def outcomes(self) -> Sequence[Sequence[Op]]:
        return [(), self.transforms]
