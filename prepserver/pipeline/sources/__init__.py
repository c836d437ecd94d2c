"""The sources of samples, as data. Each file here is a source.

`prepserver.source.readers` reads the sources. A client can ask only for sources that have a file here.
"""

import sys
from collections.abc import Mapping

from prepserver.pipeline.errors import SpecError, within
from prepserver.pipeline.members import members
from prepserver.pipeline.source import SourceSpec, check_bytes

SOURCES: dict[str, type[SourceSpec]] = members(sys.modules[__name__], SourceSpec)
"""Classes of sources by name, on the wire too."""

globals().update(SOURCES)
__all__ = [*SOURCES]


def source_from_wire(wire: object) -> SourceSpec:
    """Build a source from the map that `SourceSpec.to_wire` gives, and trust nothing in it.

    Raises:
        SpecError: No map, the source or a parameter is unknown, missing or wrong, or the source is too large for a
            message; the field begins with ``source``.
    """
    if not isinstance(wire, Mapping):
        raise SpecError("source", wire, "must be a map that names its kind under 'source'")
    name = wire.get("source")
    kind = SOURCES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise SpecError("source.source", name, f"unknown kind of source; known: {', '.join(SOURCES)}")
    with within("source"):
        found = kind.from_params({key: value for key, value in wire.items() if key != "source"})
    check_bytes("source", found)
    return found


def arrangement_of(wire: Mapping[str, object]) -> tuple[tuple[int, ...], bool]:
    """Return the `SourceSpec.arrangement` of the source that a map describes; none if another release wrote the map."""
    try:
        return source_from_wire(wire).arrangement
    except SpecError:
        return (), False


def location_of(wire: Mapping[str, object]) -> str:
    """Return the `location` of the source that a map describes; its kind if another release wrote the map."""
    try:
        return source_from_wire(wire).location
    except SpecError:
        return str(wire.get("source", ""))
