"""`Tokenize`: text to tokens."""

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Json, Text, Tokens
from prepserver.pipeline.op import FileOp
from prepserver.pipeline.record import Columns, column_of, renamed
from prepserver.pipeline.source import PathLike, absolute

_MAX_CHARS = 1024


class Tokenize(FileOp):
    """Turn text into the numbers of its tokens, int64, by a tokenizer's file.

    The file decides which tokenizer: a ``tokenizer.json`` of Hugging Face's ``tokenizers``, ranks of ``tiktoken``
    (``cl100k_base.tiktoken``), a model of ``sentencepiece``, or a vocabulary with one word per line, whose tokens are
    the words between white space, numbered by their lines from 0. All but the last need their package on the daemon's
    side (``pip install 'prepserver[text]'``); nothing is downloaded. The content of the file is part of the stream's
    identity: a job never continues with another one.

    Attributes:
        path: The tokenizer's file on the daemon's machine. It must lie where sources may lie. A relative path counts
            from the current directory. Truncation and padding in the file are ignored.
        max_tokens: Limit on the number of tokens; those beyond it are cut off. A tokenizer.json cuts by itself, which
            keeps special tokens at the end; `begin` and `end` always stay. None for no limit.
        special_tokens: Whether a tokenizer.json adds its special tokens, such as ``[CLS]``. The other files add none.
        column: The column of text.
        into: The column of tokens that takes its place.
        begin: Number of a token that is put before each text, for files that add none themselves; None for none.
        end: Number of a token that is put after each text; None for none.
        unknown: The word of a vocabulary that stands for every word it lacks; with None, a text with such a word is
            bad. Other files name their own.
        pattern: How a text is cut before ranks of tiktoken are looked up: the name of an encoding, or a regular
            expression. None for the encoding that the file is named after.
        code: Digest of the file's content; empty for its content when the job attaches.
    """

    paths = ("path",)

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
        self.path = absolute("path", path)
        self.max_tokens = None if max_tokens is None else checks.tokens("max_tokens", max_tokens)
        self.special_tokens = checks.flag("special_tokens", special_tokens)
        self.column = checks.name("column", column)
        self.into = checks.name("into", into)
        self.begin = None if begin is None else checks.integer("begin", begin, 0, 2**63 - 1)
        self.end = None if end is None else checks.integer("end", end, 0, 2**63 - 1)
        self.unknown = _text("unknown", unknown)
        self.pattern = _text("pattern", pattern)
        self.code = checks.code(code)
        if self.max_tokens is not None and self.max_tokens <= (begin is not None) + (end is not None):
            raise SpecError("max_tokens", max_tokens, "leaves no room for begin and end")

    def after(self, columns: Columns) -> Columns:
        if isinstance(column_of(columns, self.column, Text, "text"), Json):
            raise SpecError("column", self.column, "is JSON: a PluginOp with returns=kinds.Text() makes a text of it")
        return renamed(columns, self.column, {self.into: Tokens()}, {self.into: "into"})


def _text(field: str, value: object) -> str | None:
    if value is not None and not (isinstance(value, str) and 0 < len(value) <= _MAX_CHARS):
        raise SpecError(field, value, f"must be a text of 1 to {_MAX_CHARS} characters, or None")
    return value
