"""How `Jsonl` is read: the lines of its files are parsed when they are read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from prepserver.pipeline.kinds import Kind
from prepserver.pipeline.sources.jsonl import Jsonl
from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError
from prepserver.source.lines import Lines, LinesReader
from prepserver.source.reader import Sections
from prepserver.source.roots import Roots
from prepserver.source.storage import File, open_file
from prepserver.source.tables import TableSource
from prepserver.source.values import at_key, json_object, value_of

_BOM = b"\xef\xbb\xbf"
_LOOKED_AT_BYTES = 1 << 20  # of the first file, for keys that are missing


class _Objects(TableSource):
    convert = staticmethod(value_of)

    def __init__(self, container: Container, spec: Jsonl, roots: Roots) -> None:
        super().__init__(container, spec, roots)
        self._keys = [(spec.kind_of(column), spec.names.get(column, column)) for column in spec.columns]

    def values(self, file: int, line: str) -> list[Any]:
        found = json_object(line, "the line")
        return [
            at_key(found, key, kind, "the line")
            if isinstance(key, str)
            else [at_key(found, each, kind, "the line") for each in key]
            for kind, key in self._keys
        ]


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
        begin = file.read(4096, 0).removeprefix(_BOM).lstrip()
        first, _, rest = begin.partition(b"\n")
        is_value = begin.startswith(b"[") or first.strip() == b"{"
        if is_value and not (rest.startswith(b"{") and _is_json(first)):  # else one line is wrong
            raise SourceError(
                f"{path} is one JSON value, and must hold an object in each line. Convert it once: "
                + (f"jq -c '.[]' {path} > lines.jsonl" if begin.startswith(b"[") else f"jq -c . {path} > lines.jsonl")
            )
        return super().list_file(path, file, found)

    def table(self, paths: list[str], files: list[Lines]) -> tuple[dict[str, Any], Sections]:
        table = super().table(paths, files)
        with open_file(self.roots, self.what, paths[0]) as file:
            self._check_keys(paths[0], file.read(min(file.size, _LOOKED_AT_BYTES), 0))
        return table

    def _check_keys(self, path: str, begin: bytes) -> None:
        """Refuse a file of which no line at the beginning has a key: it is misspelt, rather than absent everywhere."""
        objects = []
        for line in begin.removeprefix(_BOM).splitlines():  # the last one may be cut off, and is no JSON then
            with contextlib.suppress(SampleError, UnicodeDecodeError):
                objects.append(json_object(line.decode(), "the line"))
        keys = [(key, self.spec.kind_of(name)) for name in self.spec.columns for key in self.spec.names_of(name)]
        for key, kind in keys:
            wrong = [reason for each in objects if (reason := _lacks(each, key, kind))]
            if wrong and len(wrong) == len(objects):
                raise SourceError(f"{path}: {wrong[0]}. None of {len(wrong)} lines at its beginning has it")


def _lacks(found: dict[str, Any], key: str, kind: Kind) -> str:
    try:
        at_key(found, key, kind, "a line")
    except SampleError as error:
        return error.reason
    return ""
