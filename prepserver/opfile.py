"""Reads the files of ops, for `tokens` and `transform`."""

from __future__ import annotations

import hashlib
import os
import stat

from prepserver.pipeline.op import MAX_FILE_BYTES, FileOp, code_of


class BadFile(Exception):
    """A file that an op reads cannot be used, or its package is missing; the text says what to do.

    The pipeline is to blame, not a sample.
    """


def contents(op: FileOp, what: str) -> list[bytes]:
    """Return what an op's files hold; a `BadFile`, which calls them `what`, if one is unreadable, large or changed."""
    found = [_content(path, what) for path in op.files]
    if op.code not in ("", code_of([hashlib.sha256(data).hexdigest() for data in found])):
        named = " or ".join(op.files)
        raise BadFile(f"the {what} {named} has changed since the job attached: restore it, or attach again")
    return found


def _content(path: str, what: str) -> bytes:
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer that never comes.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadFile(f"the {what} {path} is no regular file")
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadFile(f"cannot read the {what} {path}: {error.strerror}; restore it, or attach again") from error
    if len(data) > MAX_FILE_BYTES:
        raise BadFile(f"the {what} {path} has more than {MAX_FILE_BYTES} bytes, the limit for files of ops")
    return data
