"""How `Mix` is read."""

from __future__ import annotations

from prepserver.pipeline.sources.mix import Mix
from prepserver.source.composed import ComposedReader
from prepserver.source.container import Container
from prepserver.source.maps import IndexMap, Woven


class MixReader(ComposedReader):
    kind = Mix
    spec: Mix

    def map(self, listing: Container) -> IndexMap:
        return Woven(self.spec.pattern, listing.meta["lengths"])
