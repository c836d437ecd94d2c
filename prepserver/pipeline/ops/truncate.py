"""`Truncate`: a limit on the number of tokens."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Tokens
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import Record


class Truncate(Op):
    """Keep the first `length` tokens.

    Special tokens at the end are cut off, too; ``Tokenize(max_tokens=...)`` keeps them.

    Attributes:
        length: Greatest number of tokens, 1 to 16384.
        column: The column of tokens.
    """

    nests = False

    def __init__(self, length: int, column: str = "tokens") -> None:
        self.length = checks.side("length", length)
        self.column = checks.name("column", column)

    def after(self, record: Record) -> Record:
        kind = record.get(self.column)
        if not isinstance(kind, Tokens):
            raise SpecError("column", self.column, f"is no column of tokens here; there are: {', '.join(record)}")
        return {**record, self.column: Tokens(None if kind.count is None else min(kind.count, self.length))}
