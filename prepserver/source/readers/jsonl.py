"""How `Jsonl` is read: the lines of its files are parsed when they are read."""

from __future__ import annotations

import json
from typing import Any

from prepserver.pipeline.sources.jsonl import Jsonl
from prepserver.source.errors import SampleError
from prepserver.source.lines import LinesReader
from prepserver.source.tables import TableSource
from prepserver.source.values import value_of


class _Objects(TableSource):
    convert = staticmethod(value_of)

    def values(self, file: int, line: str) -> list[Any]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SampleError(f"the line is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise SampleError('the line holds no object; each line must be one, such as {"x": 1}')
        return [_at(found, self._spec.names.get(column, column)) for column in self._spec.columns]


class JsonlReader(LinesReader):
    spec: Jsonl
    source = _Objects


def _at(found: Any, name: str) -> Any:
    """Return the value of a key, or of keys separated by dots."""
    if isinstance(found, dict) and name in found:
        return found[name]
    first, dot, rest = name.partition(".")
    if dot and isinstance(found, dict) and first in found:
        return _at(found[first], rest)
    raise SampleError(f"the line has no {name!r}")
