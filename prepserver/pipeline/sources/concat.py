"""`Concat`: sources one after the other."""

from prepserver.pipeline.composed import Composed


class Concat(Composed):
    """All samples of the first source, then all of the second, and so on, as torch's ConcatDataset.

    Attributes:
        sources: 1 to 64 sources with the same columns. If they number their classes differently, a class gets its
            number from the first source that has its name; see docs/sources.md.

    Raises:
        SpecError: Columns differ, or the composition is too large.
    """
