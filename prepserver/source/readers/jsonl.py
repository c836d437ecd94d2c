"""How `Jsonl` is read: the lines of its files are parsed when they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from prepserver.pipeline.sources.jsonl import Jsonl
from prepserver.source.errors import SourceError
from prepserver.source.lines import Lines, LinesReader
from prepserver.source.storage import File
from prepserver.source.tables import TableSource
from prepserver.source.values import at_key, json_object, value_of


class _Objects(TableSource):
    convert = staticmethod(value_of)

    def values(self, file: int, line: str) -> list[Any]:
        found = json_object(line, "the line")
        names = self._spec.names
        return [at_key(found, names.get(column, column), kind, "the line") for column, kind, _ in self._columns]


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


class JsonlReader(LinesReader):
    spec: Jsonl
    source = _Objects

    def list_file(self, path: str, file: File, found: Callable[..., None]) -> Lines:
        begin = file.read(4096, 0).removeprefix(b"\xef\xbb\xbf").lstrip()
        first, _, rest = begin.partition(b"\n")
        is_value = begin.startswith(b"[") or first.strip() == b"{"
        if is_value and not (rest.startswith(b"{") and _is_json(first)):  # else one line is wrong
            raise SourceError(
                f"{path} is one JSON value, and must hold an object in each line. Convert it once: "
                + (f"jq -c '.[]' {path} > lines.jsonl" if begin.startswith(b"[") else f"jq -c . {path} > lines.jsonl")
            )
        return super().list_file(path, file, found)
