"""`PadArray`: arrays of one shape."""

from collections.abc import Sequence
from dataclasses import replace

from prepserver.pipeline import checks
from prepserver.pipeline.declared import number_of
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Array
from prepserver.pipeline.op import PadOp
from prepserver.pipeline.record import Columns, column_of


class PadArray(PadOp):
    """Fill arrays up to one shape, at the end of each dimension, as tf.data's ``padded_batch`` does.

    It is for numbers whose count differs from sample to sample: frames of a sound, a time series, points of a scan. A
    sample with more is bad: put ``Truncate(length, column)`` before this op.

    Attributes:
        shape: The shape in a row, such as ``(1500, 80)`` for frames of 80 numbers; an int is the length of a list.
        column: The column of arrays.
        value: What fills the row up; it must be a number of the array's dtype.
        mask: Name of a new column, uint8 (``shape[0]``,): 1 where there is a value and 0 for padding. None, the
            default, for no such column.
        count: Name of a new column, a scalar of int64: the length of the sample's first dimension. None, the default,
            for no such column, or for ``length`` with `trim`.
        trim: Cut each batch to its longest sample, as `PadTokens` does: ``[batch, longest, ...]``.
    """

    def __init__(
        self, shape: int | Sequence[int], column: str, value: float = 0.0, mask: str | None = None,
        count: str | None = None, trim: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(column, mask, count, trim)
        sides = checks.items_or_one("shape", shape, range(1, 9))
        self.shape = tuple(checks.tokens("shape", side) for side in sides)
        self.value = checks.number("value", value)

    def after(self, columns: Columns) -> Columns:
        kind = column_of(columns, self.column, Array, "arrays")
        if kind.shape is not None and not self.holds(kind.shape):
            raise SpecError("shape", self.shape, f"cannot hold {self.column}, whose shape is {kind.shape}")
        number_of("value", kind.dtype, int(self.value) if self.value.is_integer() else self.value)
        return self.with_column(columns, replace(kind, shape=self.shape, fill=self.value), self.shape[0])

    def holds(self, shape: Sequence[int]) -> bool:
        """Say whether an array of `shape` fits into a row."""
        return len(shape) == len(self.shape) and all(a <= b for a, b in zip(shape, self.shape, strict=True))
