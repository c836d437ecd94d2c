"""How each source is read. One file a source, found by itself.

What a source is, is in `prepserver.pipeline.sources`.
"""

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
