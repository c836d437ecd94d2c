"""Files that the ops of a pipeline read: digests of their content, and their folders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from prepserver.source.errors import SampleError, SourceError, printable
from prepserver.source.places import Places
from prepserver.source.roots import ANYWHERE, Roots
from prepserver.source.samples import read_regular_file


def digests(paths: Sequence[str], roots: Roots | None = None) -> list[str]:
    """Return the hex SHA-256 of each file; raises `SourceError` if one lies outside the roots, or cannot be read."""
    roots, found = roots or ANYWHERE, []
    for path in paths:
        roots.check_path("the file", path)
        try:
            found.append(hashlib.sha256(read_regular_file(os.fsencode(path), roots=roots)).hexdigest())
        except SampleError as error:
            reason = error.reason
            if isinstance(error.__cause__, FileNotFoundError):  # a name from a hub, perhaps
                reason = "there is no such file on the server's machine, and nothing is downloaded"
            elif os.path.isdir(path):
                reason = "it is a folder: name a file in it, such as tokenizer.json"
            raise SourceError(f"the file {printable(path)} of an op cannot be used: {reason}") from error
    return found


def places(paths: Sequence[str]) -> list[str]:
    """Return the folders where files really lie, links followed."""
    found = Places()
    for path in paths:
        found.add_file(path)
    return list(found.found())
