"""Rows without a daemon: the worker's own lines, run in the calling process.

Used by the client's inline mode. The listing of a source is kept in a cache of the user's, like the daemon's.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.config import user_cache_dir
from prepserver.order import check_start, make_order
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.shard import WHOLE, Shard
from prepserver.pipeline.sources import SourceSpec
from prepserver.protocol.layout import sample_layout
from prepserver.protocol.messages import Shuffle
from prepserver.source import SourceError, build_index, open_source
from prepserver.source.errors import printable
from prepserver.transform import row_makers
from prepserver.worker.fill import Stream, Target, fill

__all__ = ["InlineMaker", "Row", "SourceError", "class_names", "remake"]


def class_names(source: SourceSpec) -> tuple[str, list[str]]:
    """The content digest of a source (see `IndexInfo`), and the names of its classes by label, if these have names.

    Raises:
        SourceError: The dataset is missing, empty or unreadable.
    """
    index = build_index(source, user_cache_dir() / "index", lambda _samples: None)
    return index.content_digest, open_source(source, index.path).classes()


class InlineMaker:
    """Fills rows of one stream.

    Args:
        source: The dataset.
        pipeline: What is made of its samples.
        shuffle: The order.
        seed: Of order and augmentation.
        on_scanning: Called with the number of samples found while the source is listed.
        shard: Which part of the samples.
        batch_rows: See `make_order`.

    Attributes:
        samples: Length of the source.
        num_classes: Distinct labels, 0 if unknown.
        digest: See `IndexInfo`.
        content_digest: See `IndexInfo`.

    Raises:
        SourceError: The dataset is missing, empty or unreadable.
    """

    def __init__(
        self,
        source: SourceSpec,
        pipeline: Pipeline,
        shuffle: Shuffle,
        seed: int,
        on_scanning: Callable[[int], None],
        shard: Shard = WHOLE,
        batch_rows: int = 0,
    ) -> None:
        index = build_index(source, user_cache_dir() / "index", on_scanning)
        self.samples = index.n
        self.num_classes = index.num_classes
        self.digest, self.content_digest = index.digest, index.content_digest
        order = make_order(shuffle, index.n, seed, shard, batch_rows)
        self._stream = Stream(open_source(source, index.path), order, seed)
        self._makers = row_makers(pipeline)

    def check_start(self, first: int, epoch: int) -> None:
        """See `prepserver.order.check_start`."""
        check_start(self._stream.order, first, epoch)

    def fill(self, start: int, stop: int, arrays: Mapping[str, npt.NDArray[Any]]) -> list[tuple[int, int, str]]:
        """Fills the rows of positions [start, stop).

        Args:
            start: The first.
            stop: Behind the last.
            arrays: By field, all of one length; position p goes to ``p % len``.

        Returns:
            (position, sample index, reason) of rows that hold a replacement.
        """
        target = Target(self._makers, _Arrays(arrays))
        result = fill(self._stream, [target], start, stop - start, lambda _position, _index: None)
        return [(b.position, b.index, b.reason) for b in result.bad]


@dataclass(frozen=True, slots=True)
class Row:
    """One row, made again.

    Attributes:
        images: One for each view, as they are stored in a ring: shape ``(views, *row)``.
        label: Of the sample in it.
        index: Of the sample in it, -1 for a row of zeros.
        path: Of the sample in it, as the dataset names it.
        replaced: Path and reason of the sample that should be in it, if that cannot be made; else nothing.
    """

    images: npt.NDArray[Any]
    label: int
    index: int
    path: str
    replaced: list[str]


def remake(
    source: SourceSpec,
    index_path: Path,
    pipeline: Pipeline,
    shuffle: Shuffle,
    seed: int,
    samples: int,
    position: int,
    quarantined: Container[int],
    shard: Shard = WHOLE,
    batch_rows: int = 0,
) -> Row:
    """The row of one position, by the listing that a stream was made from.

    Args:
        source: The dataset.
        index_path: Its listing, which is never changed.
        pipeline: What was made of its samples.
        shuffle: The order.
        seed: Of order and augmentation.
        samples: Length of the source.
        position: Of the row.
        quarantined: Indices of samples that are not tried.
        shard: Of whose line `position` is.
        batch_rows: See `make_order`.

    Raises:
        SourceError: The listing is gone, or of another dataset.
    """
    opened = open_source(source, index_path)
    if len(opened) != samples:
        raise SourceError(f"the listing {index_path} has {len(opened)} samples, not {samples}")
    layout = sample_layout(1, pipeline.row.shape, pipeline.row.dtype, pipeline.views)
    arrays = {field.name: np.zeros((1, *field.shape), field.dtype) for field in layout.fields}
    stream = Stream(opened, make_order(shuffle, samples, seed, shard, batch_rows), seed, quarantined)
    target = Target(row_makers(pipeline), _Arrays(arrays))
    result = fill(stream, [target], position, 1, lambda _position, _index: None)
    images = np.concatenate([arrays[name] for name in layout.images])
    found = int(arrays["index"][0])
    path = printable(opened.name(found)) if found >= 0 else ""
    return Row(images, int(arrays["label"][0]), found, path, [bad.reason for bad in result.bad])


class _Arrays:
    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._arrays = arrays

    def row(self, field: str, position: int) -> npt.NDArray[Any]:
        array = self._arrays[field]
        row: npt.NDArray[Any] = array[position % len(array), ...]
        return row

    def put(self, position: int, label: int, index: int) -> None:
        for name, value in (("label", label), ("index", index)):
            self._arrays[name][position % len(self._arrays[name])] = value
