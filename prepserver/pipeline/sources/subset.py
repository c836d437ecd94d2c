"""`Subset`: chosen samples of a source."""

from collections.abc import Sequence

from prepserver.pipeline.checks import integer, number
from prepserver.pipeline.composed import Composed
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.source import PathLike, SourceSpec, absolute

MAX_INDICES = 1024  # in the spec, which travels in messages


class Subset(Composed):
    """Chosen samples of a source: by their indices, by a file of indices, or as a random fraction.

    Give exactly one of `indices`, `fraction` and `file`.

    Attributes:
        source: The source.
        indices: 1 to 1024 indices of samples, in the order in which they are read; a sample may occur several times.
        fraction: Fraction of the samples, above 0 and at most 1, rounded to whole samples, at least one. `seed` draws
            the samples, which keep their order.
        file: A ``.npy`` file on the daemon's machine: a one-dimensional array of integers, the indices. A relative path
            counts from the current directory.
        seed: Seed of `fraction`, 0 to 2**63 - 1. It does not depend on the job's seed.
    """

    paths = ("file",)

    def __init__(
        self,
        source: SourceSpec,
        indices: Sequence[int] | None = None,
        fraction: float | None = None,
        file: str | PathLike | None = None,
        seed: int = 0,
    ) -> None:
        if sum(each is not None for each in (indices, fraction, file)) != 1:
            raise SpecError("indices", indices, "or fraction or file: exactly one of the three must be given")
        if indices is not None:
            try:
                is_list = not isinstance(indices, str | bytes) and len(indices) > 0
            except TypeError:  # an array without dimensions has the method
                is_list = False
            if not is_list:
                raise SpecError("indices", indices, "must be a list of indices")
            if len(indices) > MAX_INDICES:
                reason = f"are more than {MAX_INDICES} indices: np.save() them and name the file by file="
                raise SpecError("indices", len(indices), reason)
            indices = tuple(integer("indices", each, 0, 1 << 40) for each in indices)
        fraction = None if fraction is None else number("fraction", fraction, 0.0, 1.0)
        if fraction == 0.0:
            raise SpecError("fraction", fraction, "must be above 0")
        self.indices = indices
        self.fraction = fraction
        self.file = None if file is None else absolute("file", file)
        self.seed = integer("seed", seed, 0, (1 << 63) - 1)
        super().__init__([source])
