"""`Only`: an op for one column."""

from prepserver.pipeline import nested
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import Columns


class Only(Op):
    """Apply an op to one column of images, and leave all other columns alone.

    If it moves pixels, each image of a sample is moved by itself: their sizes may differ, as those of two cameras do,
    and no mask, boxes or keypoints may lie beside them.

    Attributes:
        column: Name of the column.
        inner: The op, such as `ColorJitter`, or ``Resize((84, 84))`` to give a camera a size of its own.
    """

    nests = False

    def __init__(self, column: str, inner: nested.OpLike) -> None:
        if not isinstance(column, str):
            raise SpecError("column", column, "must be the name of a column")
        self.column = column
        self.inner = nested.inner("inner", inner)

    @property
    def moves_one(self) -> bool:
        return self.inner.moves

    @property
    def looks(self) -> int:
        """As `Op.looks`."""
        return self.inner.looks

    def after(self, columns: Columns) -> Columns:
        if self.column not in columns:
            raise SpecError("column", self.column, f"is no column here; there are: {', '.join(columns)}")
        kind = columns[self.column]
        if not isinstance(kind, Image):
            found = f"{self.column!r} is of kind {type(kind).__name__}"
            raise SpecError("column", self.column, f"{type(self.inner).__name__} changes images, and {found}")
        return {**columns, **self.inner.after({self.column: kind})}
