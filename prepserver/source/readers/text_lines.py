"""How `TextLines` is read."""

from __future__ import annotations

from prepserver.pipeline.sources.text_lines import TextLines
from prepserver.source.container import Container
from prepserver.source.lines import LinesReader, LinesSource
from prepserver.source.roots import Roots
from prepserver.source.samples import Record, Source


class TextLinesReader(LinesReader):
    kind = TextLines

    def read_by(self, container: Container, roots: Roots | None) -> Source:
        return _Texts(container, self.spec, roots)


class _Texts(LinesSource):
    def read(self, index: int) -> Record:
        return {"text": self.line(index)[1]}
