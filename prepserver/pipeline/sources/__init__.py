"""Where samples come from, as data. One file a source, found by itself.

How a source is read is in `prepserver.source.readers`. What is not here cannot be asked for over the wire.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.members import members
from prepserver.pipeline.source import SourceSpec

SOURCES: dict[str, type[SourceSpec]] = members(sys.modules[__name__], SourceSpec)
"""Classes of sources by their name, which is their name on the wire."""

globals().update(SOURCES)
__all__ = [*SOURCES]


def source_from_wire(wire: object) -> SourceSpec:
    """Build the spec that a map describes.

    Args:
        wire: What `to_wire` gave, or anything at all: it comes from a socket.

    Raises:
        SpecError: Not a map, an unknown kind, an unknown or missing field, or a bad value. The error's field
            begins with ``source``.
    """
    if not isinstance(wire, Mapping):
        raise SpecError("source", wire, "must be a map that names its kind under 'source'")
    name = wire.get("source")
    kind = SOURCES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise SpecError("source.source", name, f"unknown kind of source; known: {', '.join(SOURCES)}")
    try:
        return kind.from_params({key: value for key, value in wire.items() if key != "source"})
    except SpecError as error:
        raise SpecError(f"source.{error.field}", error.value, error.reason) from None


def place_of(wire: Mapping[str, object]) -> str:
    """Where the source lies that a map describes, for people; of one that another release wrote, its kind at least."""
    try:
        return source_from_wire(wire).place
    except SpecError:
        return str(wire.get("source", ""))
