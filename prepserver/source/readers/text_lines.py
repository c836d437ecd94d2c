"""How `TextLines` is read."""

from __future__ import annotations

from prepserver.source.lines import LinesReader, LinesSource
from prepserver.source.samples import Record


class _Texts(LinesSource):
    def read(self, index: int) -> Record:
        return {"text": self.line(index)[1]}


class TextLinesReader(LinesReader):
    source = _Texts
