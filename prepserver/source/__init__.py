"""Encoded samples by index, of every kind of source; `readers` has a file for each.

`build_index` runs once, for the daemon: it turns a spec into an index file, or finds it in the cache if nothing has
changed. `open_source` runs in every worker and reads samples by the index. This package knows nothing of order,
decoding, rows or jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from prepserver.pipeline.source import SourceSpec
from prepserver.source.cache import discard
from prepserver.source.container import BrokenContainerError
from prepserver.source.errors import SampleError, SourceError
from prepserver.source.reader import MAX_SAMPLES, Listing
from prepserver.source.readers import READERS
from prepserver.source.roots import ANYWHERE, OutsideRootsError, Roots
from prepserver.source.samples import Record, Source

__all__ = [
    "Listing", "OutsideRootsError", "Record", "Roots", "SampleError", "Source", "SourceError", "build_index",
    "open_source",
]  # fmt: skip


def build_index(
    spec: SourceSpec, cache_dir: Path, report: Callable[[int], None] = lambda _found: None, roots: Roots | None = None
) -> Listing:
    """Index a dataset, or find the index that is still good.

    Args:
        spec: The dataset.
        cache_dir: Folder of index files; created with mode 0700.
        report: Called while scanning with the number of files found, at most ten times a second, and once with the
            final number; not called if the cache has the index. An exception from it ends the scan.
        roots: Where the dataset's paths, its folders and the folders that a list names must lie. `open_source` checks
            files when it opens them.

    Raises:
        SourceError: The dataset cannot be used, or the cache cannot be written; the text says what to do. An
            `OutsideRootsError` says that the dataset does not lie in the roots.
    """
    reader = READERS[type(spec)](spec, roots or ANYWHERE)
    for part in spec.parts():  # first, so that no later error reveals what lies outside
        for name, path in part.named_paths():
            reader.roots.check_path(f"the {name} of {type(part).__name__}", path)
    seen: set[Path] = set()
    while True:
        try:
            info = reader.index(cache_dir, report)
            # Greater labels are identifiers: nobody counts them as classes, and a message takes no such number.
            return info if info.num_classes <= MAX_SAMPLES else replace(info, num_classes=0)
        except (BrokenContainerError, SourceError) as error:
            index = discard(error, cache_dir)  # its header was good, and a page far inside it is damaged
            if index is None or index in seen:
                if isinstance(error, SourceError):
                    raise
                raise SourceError(f"the index {error}") from error
            seen.add(index)


def open_source(spec: SourceSpec, index_path: Path, roots: Roots | None = None) -> Source:
    """Open the dataset of a spec by the index that was built from it: 0.1 ms for any number of samples.

    Damage inside the index shows when it is read. A file that lies outside `roots` is a bad sample.

    Raises:
        SourceError: The index is gone, damaged, or belongs to another dataset.
    """
    return READERS[type(spec)](spec, roots or ANYWHERE).open(index_path)
