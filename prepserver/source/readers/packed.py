"""How `Packed` is read: by the index that it brings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from prepserver.pipeline.sources.packed import Packed
from prepserver.source.errors import SourceError
from prepserver.source.packed import (
    PackedSource,
    check_shards,
    columns_of,
    find_index,
    info_of,
    open_index,
    packed_places,
)
from prepserver.source.reader import IndexInfo, Reader
from prepserver.source.roots import Roots
from prepserver.source.samples import Source


class PackedReader(Reader):
    """Packed."""

    kind = Packed

    def __init__(self, spec: Packed) -> None:
        self._spec = spec

    def index(self, cache_dir: Path, report: Callable[[int], None], roots: Roots | None) -> IndexInfo:
        """Check a packed dataset, whose index is ready."""
        root = Path(self._spec.root)
        path = find_index(root)
        container = open_index(path, roots)
        if missing := [name for name in self._spec.columns if name not in ("label", *columns_of(container.meta))]:
            raise SourceError(
                f"{root} was packed without {', '.join(missing)}: pack its source again with --masks, or drop masks="
            )
        check_shards(root, container, roots)
        n, num_classes, packed, content = info_of(container)
        # One folder may hold other encodings of the same samples later: they are another source.
        digest = hashlib.sha256(f"{self._spec.digest} {packed}".encode()).hexdigest()
        return IndexInfo(path, n, num_classes, digest, content, tuple(packed_places(root, path, container).found()))

    def open(self, index_path: Path, roots: Roots | None) -> Source:
        """As `Reader.open`."""
        return PackedSource(open_index(index_path, roots), self._spec.root, roots, tuple(self._spec.columns))
