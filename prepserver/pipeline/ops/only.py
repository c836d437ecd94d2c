"""`Only`: an op for one column."""

from prepserver.pipeline import nested
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import Record


class Only(Op):
    """An op that changes the values of one column, and leaves other columns of its kind alone.

    An op that moves pixels cannot be limited so: what lies on one plane stays together.

    Attributes:
        column: Name of the column.
        inner: The op.
    """

    nests = False

    def __init__(self, column: str, inner: nested.OpLike) -> None:
        if not isinstance(column, str):
            raise SpecError("column", column, "must be the name of a column")
        self.column = column
        self.inner = nested.inner("inner", inner)
        if self.inner.moves:
            raise SpecError("inner", type(self.inner).__name__, "moves pixels, which all columns do together")

    def after(self, record: Record) -> Record:
        if self.column not in record:
            raise SpecError("column", self.column, f"is no column here; there are: {', '.join(record)}")
        return {**record, self.column: self.inner.kind_after(record[self.column])}
