"""How `Tar` is read: as ranges of its shards."""

from __future__ import annotations

from collections.abc import Callable

from prepserver.pipeline.sources.tar import Tar
from prepserver.source.patterns import files_of
from prepserver.source.ranges import Listed, RangesReader
from prepserver.source.roots import Roots
from prepserver.source.tar import list_shard


class TarReader(RangesReader):
    kind = Tar
    spec: Tar

    def files(self, roots: Roots | None = None) -> list[str]:
        return files_of([self.spec.shards], roots)

    def list_file(self, path: str, roots: Roots | None, found: Callable[..., None]) -> Listed:
        extensions = [str(getattr(self.spec, column)) for column in self.columns]
        return list_shard(path, extensions, self.spec.label, roots, found)
