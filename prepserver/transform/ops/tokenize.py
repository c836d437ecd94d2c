"""How `Tokenize` is done: the texts of a chunk in one call, because most of the cost is per call."""

from collections.abc import Sequence
from typing import Any

from prepserver import tokens
from prepserver.pipeline.ops.tokenize import Tokenize
from prepserver.pipeline.record import Columns
from prepserver.transform.errors import BadSample
from prepserver.transform.stage import Draws, RecordStage


class TokenizeStage(RecordStage[Tokenize]):
    takes_blocks = True

    def __init__(self, op: Tokenize, place: int) -> None:
        super().__init__(op, place)
        self.makes = (op.into,)
        self._tokenizer: tokens.Tokenizer | None = None

    def make_block(self, block: Sequence[dict[str, Any]], after: Columns, draws: Sequence[Draws]) -> None:
        op = self._op
        try:
            # ORDER: not before the first row, when a worker is sealed: the file may be a stranger's.
            self._tokenizer = self._tokenizer or tokens.tokenizer(op)
            found = self._tokenizer([values[op.column] for values in block])
        except tokens.BadText as error:
            raise BadSample(f"{op.column}: {error}") from error
        for values, made in zip(block, found, strict=True):
            values[op.into] = made
