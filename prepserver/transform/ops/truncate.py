"""How `Truncate` is done."""

from typing import Any

from prepserver.pipeline.ops.truncate import Truncate
from prepserver.pipeline.record import Columns
from prepserver.transform.errors import BadSample
from prepserver.transform.stage import Draws, RecordStage


class TruncateStage(RecordStage[Truncate]):
    def __init__(self, op: Truncate, place: int) -> None:
        super().__init__(op, place)
        self.makes = op.columns

    def make(self, values: dict[str, Any], after: Columns, draws: Draws) -> None:
        op = self._op
        for name in op.columns:
            if not getattr(values[name], "ndim", 1):  # lists of tokens have no ndim
                raise BadSample(f"has a single number as {name}, and Truncate cuts lists")
        lengths = {name: len(values[name]) for name in op.columns}
        longest = max(lengths.values())
        if min(lengths.values()) < longest:
            found = ", ".join(f"{count} {name}" for name, count in lengths.items())
            raise BadSample(f"has {found}: Truncate cuts columns of one length alike")
        surplus = max(0, longest - op.length)
        begin = draws.below(surplus + 1) if op.side == "random" else surplus * (op.side == "left")
        for name in op.columns:
            values[name] = values[name][begin : begin + op.length]
