"""Encoded samples by index: folders of images, lists of files, shards, synthetic photos.

`build_index` (once, for the daemon) turns a spec into an index file; `open_source` (in each worker) reads samples by
it. This package knows nothing of order, decoding, rows or jobs.
"""

from __future__ import annotations

from prepserver.source.errors import SampleError, SourceError
from prepserver.source.index import build_index, open_source
from prepserver.source.reader import IndexInfo
from prepserver.source.readers.image_folder import EXTENSIONS
from prepserver.source.roots import OutsideRootsError, Roots
from prepserver.source.samples import MAX_ENCODED_BYTES, Record, Source

__all__ = [
    "EXTENSIONS",
    "MAX_ENCODED_BYTES",
    "IndexInfo",
    "OutsideRootsError",
    "Record",
    "Roots",
    "SampleError",
    "Source",
    "SourceError",
    "build_index",
    "open_source",
]
