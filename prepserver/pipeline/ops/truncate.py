"""`Truncate`: a limit on the number of tokens, or on the length of arrays."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from prepserver.pipeline import checks, declared
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Array, Kind, Tokens
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import Columns, column_of


class Truncate(Op):
    """Keep the first `length` tokens, the last ones, or some in a row; or as many elements of arrays.

    Special tokens at that end are cut off, too; ``Tokenize(max_tokens=...)`` keeps them.

    Attributes:
        length: Greatest number of tokens, or of an array's first dimension, 1 to 1048576.
        column: The column of tokens or arrays. Several are cut alike, such as the observations and actions of an
            episode; a sample in which they differ in length is bad.
        side: Where they are cut off; ``"left"`` keeps the last ones, such as a user's latest items. ``"random"`` keeps
            `length` in a row from a random place, another one in each epoch, such as a part of a sound.
    """

    nests = False
    unwritten = (("side", "right"),)

    def __init__(
        self, length: int, column: str | Sequence[str] = "tokens", side: Literal["right", "left", "random"] = "right"
    ) -> None:
        self.side = checks.choice("side", side, ("right", "left", "random"))
        self.length = checks.tokens("length", length)
        self.column = (
            checks.name("column", column) if isinstance(column, str) else declared.several_names("column", column)
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it cuts."""
        return (self.column,) if isinstance(self.column, str) else self.column

    def after(self, columns: Columns) -> Columns:
        return {**columns, **{name: self._cut(columns, name) for name in self.columns}}

    def _cut(self, columns: Columns, name: str) -> Kind:
        kind: Tokens | Array
        if isinstance(found := columns.get(name), Array):
            kind, length = found, None if found.shape is None else found.shape[0]
        else:
            kind = column_of(columns, name, Tokens, "tokens or arrays")
            length = kind.count
        if length is None or length <= self.length:
            return kind
        beside = [each for each, other in columns.items() if getattr(other, "beside", "") == name]
        if beside:
            padding = "PadTokens" if isinstance(kind, Tokens) else "PadArray"
            reason = f"would cut {name} and leave {', '.join(beside)} as long as before: cut before {padding}"
            raise SpecError("length", self.length, reason)
        if isinstance(kind, Tokens):
            return replace(kind, count=self.length)
        assert kind.shape is not None
        return replace(kind, shape=(self.length, *kind.shape[1:]))
