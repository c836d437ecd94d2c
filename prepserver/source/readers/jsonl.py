"""How `Jsonl` is read: the lines of its files are parsed when they are read."""

from __future__ import annotations

from typing import Any

from prepserver.pipeline.sources.jsonl import Jsonl
from prepserver.source.lines import LinesReader
from prepserver.source.tables import TableSource
from prepserver.source.values import at_key, json_object, value_of


class _Objects(TableSource):
    convert = staticmethod(value_of)

    def values(self, file: int, line: str) -> list[Any]:
        found = json_object(line, "the line")
        return [at_key(found, self._spec.names.get(column, column), "the line") for column in self._spec.columns]


class JsonlReader(LinesReader):
    spec: Jsonl
    source = _Objects
