"""`Split`: one fold of a cross-validation."""

from prepserver.pipeline.checks import flag, integer
from prepserver.pipeline.composed import Composed
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.source import SourceSpec


class Split(Composed):
    """One of k equal parts of a source, or the samples of all other parts, as scikit-learn's shuffled KFold.

    The seed deals the samples into the parts. They keep the order of the source.

    Attributes:
        source: The source; it must have `k` samples or more.
        k: Number of parts, 2 to 2**20.
        fold: The part, 0 to `k` - 1.
        train: True, the default, for the samples of all other parts; False for the samples of the part, to validate
            with.
        seed: 0 to 2**63 - 1. It does not depend on the job's seed.
    """

    def __init__(self, source: SourceSpec, k: int, fold: int, train: bool = True, seed: int = 0) -> None:
        self.k = integer("k", k, 2, 1 << 20)
        self.fold = integer("fold", fold, 0, (1 << 20) - 1)
        self.train = flag("train", train)
        self.seed = integer("seed", seed, 0, (1 << 63) - 1)
        if self.fold >= self.k:
            raise SpecError("fold", fold, f"must be one of {k} folds, 0 to {k - 1}")
        super().__init__([source])
