"""`Only`: an op for one column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prepserver.pipeline import nested
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import Record


@dataclass(frozen=True, slots=True, init=False)
class Only(Op):
    """An op that changes the values of one column, and leaves other columns of its kind alone.

    An op that moves pixels cannot be limited so: what lies on one plane stays together.

    Attributes:
        column: Name of the column.
        inner: The op.
    """

    nests = False

    column: str
    inner: Op

    def __init__(self, column: str, inner: Op | Mapping[str, Any]) -> None:
        if not isinstance(column, str):
            raise SpecError("column", column, "must be the name of a column")
        inner = nested.inner("inner", inner)
        if inner.moves:
            raise SpecError("inner", type(inner).__name__, "moves pixels, which all columns do together")
        self._keep(column=column, inner=inner)

    def after(self, record: Record) -> Record:
        if self.column not in record:
            raise SpecError("column", self.column, f"is no column here; there are: {', '.join(record)}")
        return {**record, self.column: self.inner.kind_after(record[self.column])}
