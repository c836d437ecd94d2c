"""How each source of `prepserver.pipeline.sources` is read. A file here is a reader, named as its source."""

from __future__ import annotations

import sys

from prepserver.pipeline.members import members
from prepserver.pipeline.source import SourceSpec
from prepserver.source.reader import Reader

READERS: dict[type[SourceSpec], type[Reader]] = {
    reader.kind: reader
    for reader in members(sys.modules[__name__], Reader).values()  # type: ignore[type-abstract]
}
"""Reader classes by the class of the spec."""
