"""`PackTokens`: several texts in a row of tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from prepserver.pipeline import checks
from prepserver.pipeline.composed import Composed
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import NO_LABEL, Array, Kind, Tokens
from prepserver.pipeline.ops import op_from_wire
from prepserver.pipeline.ops.tokenize import Tokenize
from prepserver.pipeline.record import Columns, column_of
from prepserver.pipeline.source import SourceSpec

BESIDE = {"positions": "int32", "segments": "int32", "labels": "int64"}


class PackTokens(Composed):
    """Rows of `length` tokens that each hold several texts of a source, for training with hardly any padding.

    It is a source, because it decides how many samples there are: a sample is a row. Listing the source decides once
    which texts share a row, so an epoch has each token once in any order, on any number of shards, and when resumed. A
    text with at most `length` tokens is never cut. A longer one is cut into full rows and a rest, at white space where
    possible; each part is tokenized by itself. A text that cannot be read is a row of its own, which is a bad sample.

    Attributes:
        source: The texts, or the tokens of each.
        tokenize: How texts become tokens. If it has `max_tokens`, at most `length`, longer texts lose their end. Or the
            name of a column of tokens, such as ``"input_ids"``: these are packed as they are, and longer ones are cut
            after each `length` tokens. A column ``labels`` beside it, of as many numbers, is packed along; no other
            column may be there.
        length: Number of tokens in a row, 8 to 1048576.
        pad: The number that fills the rest of a row.
        beside: Columns beside the tokens; all three by default. ``positions``, int32: the place of each token in its
            text, from 0. ``segments``, int32: the number of its text in the row, from 1; 0 for padding. ``labels``,
            int64: the next token, or the source's label for it, so they are shifted already; -100 after the last token
            of a text and for padding.

    Raises:
        SpecError: A parameter is not allowed, or the source has no such column of text.
    """

    def __init__(
        self,
        source: SourceSpec,
        tokenize: Tokenize | str,
        length: int,
        pad: int = 0,
        beside: Sequence[str] = tuple(BESIDE),
    ) -> None:
        if isinstance(tokenize, Mapping):
            tokenize = op_from_wire(tokenize)  # type: ignore[assignment]  # checked below
        if not isinstance(tokenize, Tokenize | str):
            raise SpecError("tokenize", tokenize, "must be Tokenize(path), or the name of a column of tokens")
        length = checks.integer("length", length, 8, checks.MAX_TOKENS)
        if isinstance(tokenize, Tokenize) and (tokenize.max_tokens or 0) > length:
            raise SpecError("tokenize.max_tokens", tokenize.max_tokens, f"must be at most length = {length}, or None")
        named = {checks.choice("beside", name, tuple(BESIDE)) for name in checks.items("beside", beside, range(4))}
        self.tokenize = tokenize
        self.length = length
        self.pad = checks.integer("pad", pad, -(2**63), 2**63 - 1)
        self.beside = tuple(name for name in BESIDE if name in named)
        super().__init__([source])
        if isinstance(tokenize, Tokenize):
            tokenize.after(self.sources[0].columns)
        else:
            columns = self.sources[0].columns
            column_of(columns, tokenize, Tokens, "tokens")
            kept = {tokenize, "labels"} if isinstance(columns.get("labels"), Tokens) else {tokenize}
            if lost := columns.keys() - kept:
                reason = f"are not {tokenize!r} or its labels, and would be lost: leave them out of the source"
                raise SpecError("source", sorted(lost), reason)
        if self.into in BESIDE:
            raise SpecError("tokenize.into", self.into, "is the name of a column beside the tokens")

    @property
    def into(self) -> str:
        """The column of the tokens in a row."""
        return self.tokenize if isinstance(self.tokenize, str) else self.tokenize.into

    @property
    def has_labels(self) -> bool:
        """Whether the labels of tokens come from the source."""
        return isinstance(self.tokenize, str) and "labels" in self.beside and "labels" in self.sources[0].columns

    @property
    def columns(self) -> Columns:
        """The tokens, and what was asked for beside them."""
        made: dict[str, Kind] = {self.into: Tokens(self.length, self.pad)}
        fills = {"labels": NO_LABEL}  # a row without texts teaches nothing
        shape, into = (self.length,), self.into
        return made | {name: Array(shape, BESIDE[name], fill=fills.get(name, 0), beside=into) for name in self.beside}

    def named_paths(self) -> list[tuple[str, str]]:
        return [] if isinstance(self.tokenize, str) else [("tokenize", self.tokenize.path)]

    def without_paths(self) -> list[tuple[str, Any]]:
        if isinstance(self.tokenize, str):
            return super().without_paths()
        own = {name: value for name, value in self.tokenize.to_wire().items() if name != "path"}
        return [(name, own if name == "tokenize" else value) for name, value in super().without_paths()]
