"""`Tokenize`: text to tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from prepserver.pipeline import checks
from prepserver.pipeline.declared import code as checked_code
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Text, Tokens
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import Record, renamed
from prepserver.pipeline.source import PathLike, absolute
from prepserver.pipeline.spec import FILE, Codes


@dataclass(frozen=True, slots=True, init=False)
class Tokenize(Op):
    """Text to the numbers of its tokens, by a tokenizer of Hugging Face's ``tokenizers``.

    The daemon's side needs that package (``pip install 'prepserver[text]'``). The content of the tokenizer's file is
    part of what a stream is: a job never goes on with another one.

    Attributes:
        path: The tokenizer's file, ``tokenizer.json``, on the daemon's machine. It must lie where sources may lie. A
            relative path counts from the current directory. What the file says of truncation and padding is ignored.
        max_tokens: More are cut off as the tokenizer does it, which keeps special tokens at the end. None for all.
        special_tokens: Whether the tokenizer adds its special tokens, such as ``[CLS]``.
        column: The column of text.
        into: The column of tokens that takes its place.
        code: Digest of the file's content; empty for whatever it holds when the job attaches.

    Raises:
        SpecError: An argument is none of that.
    """

    nests = False
    paths = ("path",)

    path: str
    max_tokens: int | None
    special_tokens: bool
    column: str
    into: str
    code: str

    def __init__(
        self,
        path: str | PathLike,
        max_tokens: int | None = None,
        special_tokens: bool = True,
        column: str = "text",
        into: str = "tokens",
        code: str = "",
    ) -> None:
        self._keep(
            path=absolute("path", path),
            max_tokens=None if max_tokens is None else checks.side("max_tokens", max_tokens),
            special_tokens=checks.flag("special_tokens", special_tokens),
            column=checks.name("column", column),
            into=checks.name("into", into),
            code=checked_code(code),
        )

    def with_code(self, codes: Codes) -> Tokenize:
        """As `Spec.with_code`, once the file has been read."""
        found = codes.get((FILE, self.path), self.code)
        if self.code not in ("", found):
            raise SpecError("code", self.code, f"is not the content of {self.path}, which is {found}")
        return replace(self, code=found)

    def after(self, record: Record) -> Record:
        if not isinstance(record.get(self.column), Text):
            raise SpecError("column", self.column, f"is no column of text here; there are: {', '.join(record)}")
        return renamed(record, self.column, {self.into: Tokens()})
