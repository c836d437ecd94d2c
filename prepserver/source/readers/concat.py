"""How `Concat` is read."""

from __future__ import annotations

from prepserver.pipeline.sources.concat import Concat
from prepserver.source.composed import ComposedReader
from prepserver.source.container import Container
from prepserver.source.maps import IndexMap, Interleaved


class ConcatReader(ComposedReader):
    kind = Concat
    spec: Concat

    def map(self, listing: Container) -> IndexMap:
        return Interleaved(listing.meta["lengths"], 1, 1)
