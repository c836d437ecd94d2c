"""How `Truncate` is done."""

from __future__ import annotations

from typing import Any

from prepserver.pipeline.ops.truncate import Truncate
from prepserver.pipeline.record import Record
from prepserver.transform.draw import Draws
from prepserver.transform.stage import RecordStage


class TruncateStage(RecordStage):
    op = Truncate
    _op: Truncate

    def __init__(self, op: Truncate, place: int) -> None:
        super().__init__(op, place)
        self.makes = (op.column,)

    def make(self, values: dict[str, Any], after: Record, draws: Draws) -> None:
        values[self._op.column] = values[self._op.column][: self._op.length]
