"""How `Jsonl` is read: the lines of its files are parsed when they are read."""

from __future__ import annotations

import json
from typing import Any

from prepserver.pipeline.kinds import Kind
from prepserver.pipeline.sources.jsonl import Jsonl
from prepserver.source.container import Container
from prepserver.source.errors import SampleError
from prepserver.source.lines import LinesReader
from prepserver.source.roots import Roots
from prepserver.source.samples import Source
from prepserver.source.tables import TableSource
from prepserver.source.values import value_of


class JsonlReader(LinesReader):
    kind = Jsonl
    spec: Jsonl

    def read_by(self, container: Container, roots: Roots | None) -> Source:
        return _Objects(container, self.spec, roots)


class _Objects(TableSource):
    def values(self, file: int, line: str) -> list[Any]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SampleError(f"the line is no JSON: {error}") from None
        return [_at(found, self._spec.names.get(column, column)) for column in self._spec.columns]

    def convert(self, column: str, kind: Kind, given: Any) -> Any:
        return value_of(column, kind, given)


def _at(found: Any, name: str) -> Any:
    """Return the value of a key, or of keys separated by dots."""
    if isinstance(found, dict) and name in found:
        return found[name]
    first, dot, rest = name.partition(".")
    if dot and isinstance(found, dict) and first in found:
        return _at(found[first], rest)
    raise SampleError(f"the line has no {name!r}")
