"""`Only`: an op for one column."""

from prepserver.pipeline import nested
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import Columns


class Only(Op):
    """Apply an op to one column of images, and leave all other columns alone.

    An op that moves pixels cannot be limited to a column: all that lies on one plane moves together.

    Attributes:
        column: Name of the column.
        inner: The op, one that changes values, such as `ColorJitter`.
    """

    nests = False

    def __init__(self, column: str, inner: nested.OpLike) -> None:
        if not isinstance(column, str):
            raise SpecError("column", column, "must be the name of a column")
        self.column = column
        self.inner = nested.inner("inner", inner)
        if self.inner.moves:
            raise SpecError("inner", type(self.inner).__name__, "moves pixels, which all columns do together")

    def after(self, columns: Columns) -> Columns:
        if self.column not in columns:
            raise SpecError("column", self.column, f"is no column here; there are: {', '.join(columns)}")
        kind = columns[self.column]
        if not isinstance(kind, Image):
            found = f"{self.column!r} is of kind {type(kind).__name__}"
            raise SpecError("column", self.column, f"{type(self.inner).__name__} changes images, and {found}")
        return {**columns, self.column: self.inner.kind_after(kind)}
