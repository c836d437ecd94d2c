"""How `Take` is read."""

from __future__ import annotations

from prepserver.pipeline.sources.take import Take
from prepserver.source.composed import ComposedReader
from prepserver.source.container import Container
from prepserver.source.maps import IndexMap, Window


class TakeReader(ComposedReader):
    kind = Take
    spec: Take

    def map(self, listing: Container) -> IndexMap:
        (length,) = listing.meta["lengths"]
        return Window(0, min(self.spec.n, length), length)
