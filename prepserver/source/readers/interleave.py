"""How `Interleave` is read."""

from __future__ import annotations

from prepserver.pipeline.sources.interleave import Interleave
from prepserver.source.composed import ComposedReader
from prepserver.source.container import Container
from prepserver.source.maps import IndexMap, Interleaved


class InterleaveReader(ComposedReader):
    kind = Interleave
    spec: Interleave

    def map(self, listing: Container) -> IndexMap:
        return Interleaved(listing.meta["lengths"], self.spec.cycle_length, self.spec.block_length)
