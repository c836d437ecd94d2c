"""`Truncate`: a limit on the number of tokens."""

from dataclasses import replace

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Tokens
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import Columns, column_of


class Truncate(Op):
    """Keep the first `length` tokens.

    Special tokens at the end are cut off, too; ``Tokenize(max_tokens=...)`` keeps them.

    Attributes:
        length: Greatest number of tokens, 1 to 1048576.
        column: The column of tokens.
    """

    nests = False

    def __init__(self, length: int, column: str = "tokens") -> None:
        self.length = checks.tokens("length", length)
        self.column = checks.name("column", column)

    def after(self, columns: Columns) -> Columns:
        kind = column_of(columns, self.column, Tokens, "tokens")
        if kind.count is not None and kind.count > self.length:
            beside = [name for name, each in columns.items() if getattr(each, "beside", "") == self.column]
            if beside:
                reason = (
                    f"would cut {self.column} and leave {', '.join(beside)} as long as before: cut before PadTokens"
                )
                raise SpecError("length", self.length, reason)
        return {**columns, self.column: replace(kind, count=kind.count and min(kind.count, self.length))}
