"""How `Skip` is read."""

from __future__ import annotations

from prepserver.pipeline.sources.skip import Skip
from prepserver.source.composed import ComposedReader
from prepserver.source.container import Container
from prepserver.source.maps import IndexMap, Window


class SkipReader(ComposedReader):
    kind = Skip
    spec: Skip

    def map(self, listing: Container) -> IndexMap:
        (length,) = listing.meta["lengths"]
        return Window(self.spec.n, max(0, length - self.spec.n), length)
