"""How `Repeat` is read."""

from __future__ import annotations

from prepserver.pipeline.sources.repeat import Repeat
from prepserver.source.composed import ComposedReader
from prepserver.source.container import Container
from prepserver.source.maps import IndexMap, Window


class RepeatReader(ComposedReader):
    kind = Repeat
    spec: Repeat

    def map(self, listing: Container) -> IndexMap:
        (length,) = listing.meta["lengths"]
        return Window(0, self.spec.k * length, length)
