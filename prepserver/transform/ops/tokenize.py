"""How `Tokenize` is done: by ``tokenizers``, a text at a time."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from prepserver.pipeline.ops.tokenize import Tokenize
from prepserver.pipeline.record import Record
from prepserver.transform.draw import Draws
from prepserver.transform.errors import BadFile
from prepserver.transform.stage import RecordStage


class TokenizeStage(RecordStage):
    op = Tokenize
    _op: Tokenize

    def __init__(self, op: Tokenize, place: int) -> None:
        super().__init__(op, place)
        self.makes = (op.into,)

    def make(self, values: dict[str, Any], after: Record, draws: Draws) -> None:
        op = self._op
        # ORDER: not before the first row, when a worker is sealed: the file may be a stranger's.
        tokenizer = _tokenizer(op.path, op.code, op.max_tokens)
        # In a batch of one, because only batches leave out the places of tokens in the text, which nobody asks for.
        (found,) = tokenizer.encode_batch_fast([values[op.column]], add_special_tokens=op.special_tokens)
        values[op.into] = np.array(found.ids, np.int64)


@lru_cache(maxsize=4)
def _tokenizer(path: str, code: str, max_tokens: int | None) -> Any:
    """Return the tokenizer of a file.

    Raises:
        BadFile: There is no package, or the file is no tokenizer, or another one than when the job attached.
    """
    try:
        import tokenizers
    except ImportError as error:
        reason = f"Tokenize needs tokenizers where rows are made: pip install 'prepserver[text]' ({error})"
        raise BadFile(reason) from error
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise BadFile(f"cannot read the tokenizer {path}: {error.strerror}; restore it, or attach again") from error
    if code not in ("", hashlib.sha256(data).hexdigest()):
        raise BadFile(f"the tokenizer {path} has changed since the job attached: restore it, or attach again")
    try:
        found = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # of no narrower class
        raise BadFile(f"{path} is no tokenizer of Hugging Face's tokenizers: {error}") from error
    found.no_padding()
    if max_tokens is None:
        found.no_truncation()
    else:
        found.enable_truncation(max_tokens)
    return found
