"""`PadTokens`: tokens of one length."""

from typing import Literal

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Tokens
from prepserver.pipeline.op import PadOp
from prepserver.pipeline.record import Columns, column_of


class PadTokens(PadOp):
    """Fill tokens up to one length, and mark which of them are tokens. The result is int64, (`length`,).

    A sample with more tokens is bad: put ``Truncate(length)`` before this op.

    Attributes:
        length: Number of tokens in a row, 1 to 1048576.
        pad: The number that fills the row up: that of the tokenizer's padding token.
        mask: Name of a new column, uint8 (`length`,): 1 for a token and 0 for padding. None for no such column.
        count: Name of a new column, a scalar of int64: the sample's number of tokens. None, the default, for no such
            column, or for ``length`` with `trim`.
        column: The column of tokens.
        trim: Cut each batch to its longest sample: ``[batch, longest]``, a view of the whole rows. Rows always have
            `length` tokens in shared memory, so that jobs with other batches can share them.
        side: Where the padding goes; ``"left"``, as generation needs it, cannot be trimmed.
    """

    unwritten = (("side", "right"),)

    def __init__(
        self, length: int, pad: int = 0, mask: str | None = "mask", count: str | None = None, column: str = "tokens",
        trim: bool = False, side: Literal["right", "left"] = "right",
    ) -> None:  # fmt: skip
        super().__init__(column, mask, count, trim)
        self.side = checks.choice("side", side, ("right", "left"))
        if trim and side == "left":
            raise SpecError("trim", trim, "cuts batches at the end, and side='left' puts the tokens there")
        self.length = checks.tokens("length", length)
        self.pad = checks.integer("pad", pad, -(2**63), 2**63 - 1)

    def after(self, columns: Columns) -> Columns:
        column_of(columns, self.column, Tokens, "tokens")
        return self.with_column(columns, Tokens(self.length, self.pad), self.length)
