"""Streams of samples, and the lanes whose rows are filled from them, as workers see both."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from prepserver.cache.store import Store
from prepserver.memory.ring import ArrayRows
from prepserver.order import NO_SAMPLE, Order
from prepserver.pipeline.caching import Head, head_of
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import INDEX, RowField
from prepserver.source import Record, Source
from prepserver.transform import RowMaker, SampleKey, row_makers
from prepserver.transform.mixing import Mixer, mixers


class Lane(NamedTuple):
    """A lane."""

    makers: Sequence[RowMaker]  # one for each view (`prepserver.transform.row_makers`)
    copied: Sequence[RowField]  # fields that are copied from the record, after the others are made
    rows: ArrayRows  # where the rows go: a ring, or arrays of the caller
    quarantined: set[int]  # indices that are bad for this pipeline: workers died or hung in it
    head: Head  # the ops whose result a cache holds: see `prepserver.pipeline.caching`
    tails: Sequence[RowMaker] = ()  # as `makers`, for the ops after the head
    cache: Store | None = None  # holds samples after the head; None for no such cache
    # one for each view, if rows are mixed of several samples (`prepserver.transform.mixing`)
    mixers: Sequence[Mixer] = ()

    @property
    def only_copies(self) -> bool:
        """True if all fields are copied from the record."""
        return not any(maker.fields for maker in self.makers)

    @property
    def takes_blocks(self) -> bool:
        """True if several of its rows may be made at once."""
        return not self.mixers and all(maker.takes_blocks or not maker.fields for maker in self.makers)

    @classmethod
    def of(cls, pipeline: Pipeline, rows: ArrayRows, quarantined: Iterable[int] = ()) -> Lane:
        """The lane of a pipeline."""
        makers, head = row_makers(pipeline), head_of(pipeline)
        made = {field.name for maker in makers for field in maker.fields}
        copied = [field for field in pipeline.fields if field.name not in made]
        tails = row_makers(pipeline, head.count)
        return cls(makers, copied, rows, set(quarantined), head, tails, mixers=mixers(pipeline, head.count))

    def copy_values(self, record: Record, position: int, index: int) -> None:
        """Copies what no op makes from a sample's record into its row."""
        for field in self.copied:
            self.rows.put(field.name, position, index if field.column == INDEX else record[field.column])

    def is_served_by(self, record: Record) -> bool:
        """Whether rows from a record of its cache have the bytes that they have without one.

        A large JPEG that a crop follows is decoded at a smaller scale, which whole pixels cannot give.
        """
        height, width = record[self.makers[0].images[0].column].shape[:2]
        return self.head.count > 0 or self.makers[0].most_scale(height, width) == 1


@dataclass(slots=True)
class Stream:
    """An endless sequence of samples."""

    source: Source  # where they come from
    order: Order  # their order
    seed: int  # seed of the augmentations
    quarantined: AbstractSet[int] = frozenset()  # indices that are bad and not even read, because workers died on them
    cache: Store | None = None  # holds samples as they are stored; None for no such cache

    def prefetch(self, position: int, count: int, lanes: Sequence[Lane]) -> None:
        """Begins to read the samples of positions [position, position + count), which `fill` will be asked for.

        Samples that caches hold for all `lanes` are not read.
        """
        if not self.source.reads_ahead:
            return
        # An error here will occur again when the sample is read, and is reported there.
        with contextlib.suppress(Exception):
            indices = [(p, i) for p, i in enumerate(self.order.indices(position, count), position) if i != NO_SAMPLE]
            wanted = [i for p, index in indices for i in (index, *self._partners(p, index, lanes))]
            self.source.prefetch([i for i in wanted if not (self._is_kept(i, lanes) or self._is_bad(i, lanes))])

    def _partners(self, position: int, index: int, lanes: Sequence[Lane]) -> Iterator[int]:
        key = SampleKey(self.seed, position // self.order.n, index)
        for mixer in (mixer for lane in lanes for mixer in lane.mixers):
            yield from mixer.parts.mix(self.order.samples, key).partners

    def _is_bad(self, index: int, lanes: Sequence[Lane]) -> bool:
        """Whether `fill` does not read a sample: the file may be one that hangs."""
        return index in self.quarantined or (bool(lanes) and all(index in each.quarantined for each in lanes))

    def _is_kept(self, index: int, lanes: Sequence[Lane]) -> bool:
        if self.cache is not None and self.cache.holds(index):
            return True
        return bool(lanes) and all(lane.cache is not None and lane.cache.holds(index) for lane in lanes)
