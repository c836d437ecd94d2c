"""How `Truncate` is done."""

from typing import Any

from prepserver.pipeline.ops.truncate import Truncate
from prepserver.pipeline.record import Columns
from prepserver.transform.stage import Draws, RecordStage


class TruncateStage(RecordStage[Truncate]):
    def make(self, values: dict[str, Any], after: Columns, draws: Draws) -> None:
        op, tokens = self._op, values[self._op.column]
        values[op.column] = tokens[-op.length :] if op.side == "left" else tokens[: op.length]
