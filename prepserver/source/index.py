"""From a spec to a ready index, and from an index to an open source: the two verbs of this package.

`build_index` runs once, for the daemon; `open_source` runs in every worker and takes what the first one wrote. An index
is taken from the cache if nothing that it was built from has changed. A packed dataset brings its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prepserver.pipeline.source import SourceSpec
from prepserver.source.reader import IndexInfo
from prepserver.source.readers import READERS
from prepserver.source.roots import Roots
from prepserver.source.samples import Source


def build_index(
    spec: SourceSpec,
    cache_dir: Path,
    report: Callable[[int], None] = lambda _found: None,
    roots: Roots | None = None,
) -> IndexInfo:
    """Index a dataset, or find the index that is still good.

    Args:
        spec: The dataset.
        cache_dir: Folder of index files; created with mode 0700.
        report: Called while scanning with the number of files found, about ten times a second at most, and
            once with the final number; not called if the cache has the index. What it raises ends the scan.
        roots: Where the dataset must lie: what it names, every folder of it, the folders that a list names. Files are
            checked when they are opened, see `open_source`.

    Raises:
        SourceError: The dataset cannot be used, or the cache cannot be written; the text says what to do.
        OutsideRootsError: Which is one: the dataset does not lie in the roots.
    """
    if roots is not None:
        # First of all, so that what is outside is told from nothing that is said about it.
        for name in spec.paths:
            if (path := getattr(spec, name)) is not None:
                roots.check_path(f"the {name} of {type(spec).__name__}", path)
    return READERS[type(spec)](spec).index(cache_dir, report, roots)


def open_source(spec: SourceSpec, index_path: Path, roots: Roots | None = None) -> Source:
    """Open a dataset by its index, which is read once to compare its checksum: 5 ms for a million files.

    Args:
        spec: The spec that the index was built from.
        index_path: `IndexInfo.path`.
        roots: Where every file must lie that is read from now on; one that does not is a bad sample.

    Raises:
        SourceError: The index is gone, damaged, or of another dataset.
    """
    return READERS[type(spec)](spec).open(index_path, roots)
