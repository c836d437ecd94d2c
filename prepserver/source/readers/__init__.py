"""Readers of the sources of `prepserver.pipeline.sources`, each in a file named as its source.

A composed source without a file is read by `ComposedReader`.
"""

from __future__ import annotations

import sys

from prepserver.pipeline.composed import Composed
from prepserver.pipeline.members import members
from prepserver.pipeline.source import SourceSpec
from prepserver.pipeline.sources import SOURCES
from prepserver.source.composed import ComposedReader
from prepserver.source.reader import Reader

_OWN = members(sys.modules[__name__], Reader)  # type: ignore[type-abstract]

READERS: dict[type[SourceSpec], type[Reader]] = {
    **{spec: ComposedReader for spec in SOURCES.values() if issubclass(spec, Composed)},
    **{SOURCES[name.removesuffix("Reader")]: reader for name, reader in _OWN.items()},
}
"""Reader classes by the class of the spec."""
