"""`Truncate`: a limit on the number of tokens."""

from dataclasses import replace
from typing import Literal

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Tokens
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import Columns, column_of


class Truncate(Op):
    """Keep the first `length` tokens, or the last ones.

    Special tokens at that end are cut off, too; ``Tokenize(max_tokens=...)`` keeps them.

    Attributes:
        length: Greatest number of tokens, 1 to 1048576.
        column: The column of tokens.
        side: Where tokens are cut off; ``"left"`` keeps the last ones, such as a user's latest items.
    """

    nests = False
    unwritten = (("side", "right"),)

    def __init__(self, length: int, column: str = "tokens", side: Literal["right", "left"] = "right") -> None:
        self.side = checks.choice("side", side, ("right", "left"))
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
