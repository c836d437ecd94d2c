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

_MAX_CHARS = 1024


@dataclass(frozen=True, slots=True, init=False)
class Tokenize(Op):
    """Text to the numbers of its tokens, by a tokenizer's file.

    The file says which tokenizer it is: a ``tokenizer.json`` of Hugging Face's ``tokenizers``, ranks of ``tiktoken``
    (``cl100k_base.tiktoken``), a model of ``sentencepiece``, or a vocabulary with a word in each line, whose tokens are
    the words between white space and the numbers of their lines from 0. All but the last need their package on the
    daemon's side (``pip install 'prepserver[text]'``); nothing is downloaded. The content of the file is part of what
    a stream is: a job never goes on with another one.

    Attributes:
        path: The tokenizer's file, on the daemon's machine. It must lie where sources may lie. A relative path counts
            from the current directory. What the file says of truncation and padding is ignored.
        max_tokens: More are cut off. A tokenizer.json cuts by itself, which keeps special tokens at the end; `begin`
            and `end` always stay. None for all.
        special_tokens: Whether a tokenizer.json adds its special tokens, such as ``[CLS]``. The other files add none.
        column: The column of text.
        into: The column of tokens that takes its place.
        begin: Number of a token that each text begins with, for files that add none by themselves; None for none.
        end: Number of a token that each text ends with.
        unknown: The word of a vocabulary that stands for all that it lacks; with None, a text with another word is
            bad. Other files say it by themselves.
        pattern: How a text is cut before ranks of tiktoken are looked up: the name of an encoding, or a regular
            expression. None for the encoding that the file is named after.
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
    begin: int | None
    end: int | None
    unknown: str | None
    pattern: str | None
    code: str

    def __init__(
        self,
        path: str | PathLike,
        max_tokens: int | None = None,
        special_tokens: bool = True,
        column: str = "text",
        into: str = "tokens",
        begin: int | None = None,
        end: int | None = None,
        unknown: str | None = None,
        pattern: str | None = None,
        code: str = "",
    ) -> None:
        around = [
            None if each is None else checks.integer(name, each, 0, 2**63 - 1)
            for name, each in (("begin", begin), ("end", end))
        ]
        most = None if max_tokens is None else checks.side("max_tokens", max_tokens)
        if most is not None and most <= sum(each is not None for each in around):
            raise SpecError("max_tokens", max_tokens, "leaves no room for begin and end")
        self._keep(
            path=absolute("path", path),
            max_tokens=most,
            special_tokens=checks.flag("special_tokens", special_tokens),
            column=checks.name("column", column),
            into=checks.name("into", into),
            begin=around[0],
            end=around[1],
            unknown=_text("unknown", unknown),
            pattern=_text("pattern", pattern),
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


def _text(field: str, value: object) -> str | None:
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= _MAX_CHARS):
        raise SpecError(field, value, f"must be a text of 1 to {_MAX_CHARS} characters, or None")
    return value
