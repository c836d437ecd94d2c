"""`BucketByLength`: samples sorted by length."""

from prepserver.pipeline import checks
from prepserver.pipeline.composed import Composed
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Bytes, Scalar, Text, Tokens
from prepserver.pipeline.source import SourceSpec


class BucketByLength(Composed):
    """The samples of a source, sorted by the length of a column, so that a batch has samples of similar lengths.

    Use ``order="batch-shuffle-repeat"`` in the `PrepClient`. Each epoch shuffles runs of consecutive samples, cuts them
    into batches and shuffles these, so batches differ from epoch to epoch. A run has 2 to 64 batches; within these
    limits it is a 64th of the samples. Lengths are read once, when the source is listed.

    Attributes:
        source: The source.
        column: A column of text (whose length is in characters), tokens or bytes, or a number that says how long a
            sample is, such as the seconds of a sound.

    Raises:
        SpecError: The source has no such column.
    """

    is_sorted = True

    def __init__(self, source: SourceSpec, column: str = "text") -> None:
        self.column = checks.name("column", column)
        super().__init__([source])
        if not isinstance(self.columns.get(column), Text | Tokens | Bytes | Scalar):
            reason = f"is no column of text, tokens, bytes or single numbers; there are: {', '.join(self.columns)}"
            raise SpecError("column", column, reason)
