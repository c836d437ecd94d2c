"""Tokenizers from files: text to the numbers of its tokens, by the package that a file is made for.

The file decides: ``tokenizer.json`` of Hugging Face's ``tokenizers``, ranks of ``tiktoken``, a model of
``sentencepiece``, or a vocabulary, a word a line. Nothing is downloaded. A process loads a tokenizer once, and drops it
with its last user: it may take hundreds of megabytes. `source` and `transform` use this module; it knows neither.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from prepserver.opfile import BadFile, contents
from prepserver.pipeline.ops.tokenize import Tokenize

Tokens = npt.NDArray[np.int64]
Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]
"""Texts to the numbers of their tokens, without what `Tokenize.begin` and `Tokenize.end` add."""

_RANK = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")
_JSON = re.compile(rb'\s*\{\s*"')

_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
    r"\s+(?!\S)|\s"
)
_R50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERNS = {"gpt2": _R50K, "r50k_base": _R50K, "p50k_base": _R50K, "cl100k_base": _CL100K, "o200k_base": _O200K}
"""How tiktoken's encodings split a text before they look up ranks; files of ranks do not hold this."""


class BadText(Exception):
    """A tokenizer cannot make tokens of one text."""


class Tokenizer:
    """The tokenizer of a file, `encode`, with the settings of a `Tokenize`."""

    def __init__(self, op: Tokenize, encode: Encode) -> None:
        self._encode = encode
        self._begin = [] if op.begin is None else [op.begin]
        self._end = [] if op.end is None else [op.end]
        self._most = None if op.max_tokens is None else op.max_tokens - len(self._begin) - len(self._end)

    def __call__(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the tokens of each text, which do not depend on the other texts.

        Raises:
            BadText: At least one text cannot be tokenized. Call this with each one alone to find out which.
        """
        try:
            for text in texts:
                text.encode()  # tokenizers and tiktoken treat a lone surrogate, which JSON may hold, differently
        except UnicodeEncodeError as error:
            raise BadText(f"character {error.start} of a text is half of a surrogate pair, and no character") from None
        with _no_panic(BadText, "the tokenizer cannot cut a text, or lacks a part of it"):
            return [self._array(found) for found in self._encode(texts)]

    def _array(self, found: Sequence[int]) -> Tokens:
        if self._most is not None and len(found) > self._most:
            found = found[: self._most]
        if not self._begin and not self._end:
            return np.array(found, np.int64)
        whole = chain(self._begin, found, self._end)
        return np.fromiter(whole, np.int64, len(self._begin) + len(found) + len(self._end))


_in_use: WeakValueDictionary[Tokenize, Tokenizer] = WeakValueDictionary()


def tokenizer(op: Tokenize) -> Tokenizer:
    """Return the tokenizer of an op's file, loaded once while it is in use.

    Raises:
        BadFile: Its package is missing, it is no tokenizer, or its content does not match the op's digest.
    """
    found = _in_use.get(op)
    if found is None:
        found = _in_use[op] = _loaded(op)
    return found


def _loaded(op: Tokenize) -> Tokenizer:
    (data,) = contents(op, "tokenizer")
    if op.path.endswith(".json") or _JSON.match(data):
        load = _hugging_face
    elif _RANK.match(data):
        load = _tiktoken
    elif b"\0" in data:
        load = _sentencepiece
    else:
        load = _vocabulary
    try:
        with _no_panic(BadFile, f"{op.path} is no tokenizer that its package can use"):
            return Tokenizer(op, load(op, data))
    except ImportError as error:
        name = load.__name__.strip("_")
        reason = f"Tokenize needs {_PACKAGES[name]} where rows are made: pip install 'prepserver[text]' ({error})"
        raise BadFile(reason) from error


@contextmanager
def _no_panic(kind: type[Exception], what: str) -> Iterator[None]:
    """Turn a panic in a package's Rust code into an error: a panic is no `Exception`, and would end a worker."""
    try:
        yield
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise kind(f"{what}: {error}") from error


_PACKAGES = {"hugging_face": "tokenizers", "tiktoken": "tiktoken", "sentencepiece": "sentencepiece"}


def _hugging_face(op: Tokenize, data: bytes) -> Encode:
    import tokenizers

    try:
        found = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the package raises no narrower class
        raise BadFile(f"{op.path} is no tokenizer of Hugging Face's tokenizers: {error}") from error
    if dropout := getattr(found.model, "dropout", None):
        raise BadFile(
            f"{op.path} has dropout={dropout}, by which a text has other tokens each time: set model.dropout to null"
        )
    found.no_padding()
    if op.max_tokens is None:
        found.no_truncation()
    else:
        # Cut by the package itself, which keeps the special tokens at the end.
        found.enable_truncation(op.max_tokens - (op.begin is not None) - (op.end is not None))
    special = op.special_tokens

    def encode(texts: Sequence[str]) -> list[list[int]]:
        # A batch even of one: unlike `encode`, this computes no offsets of tokens in the text, which nobody needs.
        return [each.ids for each in found.encode_batch_fast(list(texts), add_special_tokens=special)]

    return encode


def _tiktoken(op: Tokenize, data: bytes) -> Encode:
    import tiktoken

    name = Path(op.path).stem
    pattern = _PATTERNS.get(op.pattern or name, op.pattern)
    if pattern is None:
        raise BadFile(
            f"{op.path} has ranks of tiktoken, which do not say how a text is cut: name it as its encoding "
            f"({', '.join(_PATTERNS)}), or give pattern= one of these names or a regular expression"
        )
    try:
        ranks = {base64.b64decode(word): int(rank) for word, rank in map(bytes.split, data.splitlines())}
        made = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    except Exception as error:  # the package's own has no class
        raise BadFile(f"{op.path} has no ranks of tiktoken, or pattern= is no expression: {error}") from error
    return lambda texts: [made.encode_ordinary(text) for text in texts]


def _sentencepiece(op: Tokenize, data: bytes) -> Encode:
    import sentencepiece

    try:
        made: Any = sentencepiece.SentencePieceProcessor(model_proto=data)
    except RuntimeError as error:
        raise BadFile(f"{op.path} is no model of sentencepiece, and no text: {error}") from error

    def encode(texts: Sequence[str]) -> list[list[int]]:
        found: list[list[int]] = made.encode(list(texts), out_type=int, num_threads=1)
        return found

    return encode


def _vocabulary(op: Tokenize, data: bytes) -> Encode:
    try:
        words = [line.removesuffix("\r") for line in data.decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        raise BadFile(
            f"{op.path} is neither a tokenizer.json, nor ranks of tiktoken, nor a model of sentencepiece; and as a "
            f"vocabulary, a word a line, it is no UTF-8: {error}"
        ) from error
    numbers: dict[str, int] = {}
    for number, word in enumerate(words):
        if word and numbers.setdefault(word, number) != number:
            raise BadFile(f"{op.path} has the word {word!r} in lines {numbers[word] + 1} and {number + 1}")
    if op.unknown is not None and op.unknown not in numbers:
        raise BadFile(f"{op.path} lacks the word unknown={op.unknown!r}, which is to stand for all others")
    other = numbers.get(op.unknown or "")

    def encode(texts: Sequence[str]) -> list[list[int]]:
        try:
            if other is None:
                return [[numbers[word] for word in text.split()] for text in texts]
        except KeyError as error:
            word = f"{error.args[0]!r:.100}"  # a whole line without blanks would leave no room for the remedy
            raise BadText(f"has the word {word}, which {op.path} lacks: name a word of it, unknown='[UNK]'") from None
        return [[numbers.get(word, other) for word in text.split()] for text in texts]

    return encode
