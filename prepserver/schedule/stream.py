"""One running stream: its window of positions, and the cursors in it.

```
      floor            low          watermark        head        limit
        |               |               |              |            |
  ...---+===============+===============+======.=.=====+............+---> positions
        ^ a worker may  ^ the slowest   ^ all rows     ^ never      ^ floor + rows of the smallest
          still write     cursor          below are      given out    ring: beyond it a row would
          from here                       in the ring    yet          overwrite one that is needed
```

A row may be refilled once every cursor has released it *and* no chunk with it runs or waits for a worker: one that is
stuck in the kernel, or late with a chunk that was given out twice, may still write the old bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from prepserver.protocol import work
from prepserver.schedule.actions import Announce
from prepserver.schedule.bad import BadRows
from prepserver.schedule.chunks import Chunks
from prepserver.schedule.records import BadRow, Chunk, Cursor, Lane, Spent, Took
from prepserver.schedule.row_groups import RowGroups


@dataclass(slots=True)
class Stream:
    """The state of one stream. It has more than 15 public members because most are one number of the window."""

    id: int  # unique number, never reused
    # Digest of what jobs that share it have in common: listing, order, seed, shard, roots and places. A suffix marks a
    # stream for slow pipelines (`prepserver.schedule.pace`).
    key: str
    source: str  # digest of the source's listing
    n: int  # positions of a pass
    next_start: Callable[[int], int]  # smallest position at or after the given one at which an epoch may begin
    head: int  # next position never given to a worker
    spec: work.AddStream  # its description for workers
    cap: int | None = None  # end of an early stream's allowance (`prepserver.schedule.early`); None for other streams
    groups: RowGroups | None = None  # row groups of its source, if its order follows them
    gate: int | None = None  # chunks end here, where an early stream waits to join; None if none does
    lanes: dict[int, Lane] = field(default_factory=dict)  # by number
    cursors: dict[int, Cursor] = field(default_factory=dict)  # the ranks that read it
    bad: BadRows = field(default_factory=BadRows)
    chunks: Chunks = field(default_factory=Chunks)  # state of its chunks
    spent: Spent = field(default_factory=Spent)  # CPU time of reading and decoding, which lanes share
    served_ns: int = 0  # worker time that `Dispatch` has charged to it
    last_served: int = 0  # running number of the last chunk that a worker got of it, over all streams
    rows_filled: int = 0
    rows_delivered: int = 0  # rows announced to ranks
    # start of a chunk in which a worker died -> its samples with strikes, as (pipeline, index)
    suspects: dict[int, set[tuple[str, int]]] = field(default_factory=dict)
    # chunks that were given to two workers, by start: None until one has made it, then its bad rows until the other has
    # ended
    twice: dict[int, list[BadRow] | None] = field(default_factory=dict)
    parted_s: float | None = None  # when a parting made it; None if none did
    # consecutive failed tasks by the lane to blame; None where no lane is
    failed: Counter[int | None] = field(default_factory=Counter)
    # lane -> samples that were quarantined for it since one of its chunks was made
    quarantines: Counter[int] = field(default_factory=Counter)
    _pace: tuple[tuple[int, ...], int] | None = None  # lanes of the chunk made last, and its time per row
    _low: int | None = None  # cached like the next two, because every event needs them; see `changed`
    _wanted: int | None = None
    _ready: int | None = None

    # -- the window ---------------------------------------------------------------------------------

    def changed(self) -> None:
        """Drops the cached values; call it after a cursor has come, left or moved."""
        self._low = self._wanted = self._ready = None

    def advanced(self, cursor: Cursor, before: int) -> bool:
        """Returns whether the window may have moved after `cursor` released rows; `before` was its `first_needed`."""
        self._ready = None
        if self._wanted is not None and cursor.first_needed + cursor.prefetch > self._wanted:
            self._wanted = cursor.first_needed + cursor.prefetch
        elif before > self.low:
            return False  # the cursor is neither the slowest nor the foremost
        if before == self._low:
            self._low = None
        return True

    @property
    def low(self) -> int:
        """Position of the slowest cursor (`head` if there is none)."""
        if not self.cursors:
            return self.head
        if self._low is None:
            self._low = min(c.first_needed for c in self.cursors.values())
        return self._low

    @property
    def wanted(self) -> int:
        """First position that no cursor wants to have ready yet."""
        if self._wanted is None:
            self._wanted = max(c.first_needed + c.prefetch for c in self.cursors.values())
        return self._wanted

    @property
    def floor(self) -> int:
        """First position whose row may not be overwritten."""
        written = self.chunks.first_written, None if self.groups is None else self.groups.first_aside
        return min([self.low, *(position for position in written if position is not None)])

    @property
    def watermark(self) -> int:
        """All rows in [low, watermark) are in the rings."""
        first = self.chunks.first_unmade
        return self.head if first is None else first

    @property
    def limit(self) -> int:
        """First position that must not be filled yet."""
        if not self.cursors:
            return self.head
        floor = self.floor
        # A ring never held anything below the oldest position of its lane.
        ends = [
            max(floor, lane.start if lane.oldest is None else lane.oldest) + lane.rows for lane in self.lanes.values()
        ]
        return min(self.wanted, *ends) if self.cap is None else min(self.wanted, self.cap, *ends)

    @property
    def ring_rows(self) -> int:
        """Rows of the smallest ring."""
        return min(lane.rows for lane in self.lanes.values())

    def chunk_rows(self, most: int) -> int:
        """Rows of its first chunks: `most`, fewer if a row is large."""
        return min([most, *(lane.chunk_rows_most for lane in self.lanes.values())])

    @property
    def largest_round(self) -> int:
        """Rows of the largest round of batches of any job; 0 if there is none."""
        return max((c.round_rows for c in self.cursors.values()), default=0)

    def ready_rows(self) -> int:
        """The fewest announced and unreleased rows of any rank; 0 if one waits."""
        # `released` exceeds `announced` where rows of other ranks, or rows that drop_last leaves out, lie between them.
        if self._ready is None:
            self._ready = max(0, min((c.announced - c.released for c in self.cursors.values() if c.present), default=0))
        return self._ready

    # -- what is made -------------------------------------------------------------------------------

    def next_chunk(self, most: int, least: int, waits: Callable[[int], bool] | None = None) -> Chunk | None:
        """Takes the next run of positions to fill, of at most `most` rows; None while the window is full.

        A window with room for fewer rows than `least` counts as full. If `waits` says that the first position waits for
        another worker, the run is as long as the window allows.
        """
        low = self.low
        if (lost := self.chunks.next_lost()) is not None:
            return Chunk(*lost, self.lanes_at(lost[0]))
        # A lane that came from another stream has its rows below its start already, and no other lane may need them.
        self.head = max(self.head, low, min((lane.start for lane in self.lanes.values()), default=0))
        count = self.limit - self.head
        if waits is None or not waits(self.head):
            count = min(count, most)
        if self.gate is not None and self.gate >= self.head:
            count = min(count, self.gate - self.head)
        # Each chunk costs a message: if more than half of the window is given out, wait until a whole one fits.
        if count <= 0 or (count < least and 2 * (self.head - low) > self.ring_rows):
            return None
        # A chunk ends where a lane starts, so that the lane gets its first rows.
        count = min([count, *(lane.start - self.head for lane in self.lanes.values() if lane.start > self.head)])
        if self.groups is not None:
            count = self.groups.run(self.head, count)
        chunk = Chunk(self.head, count, self.lanes_at(self.head))
        self.chunks.given(chunk.position)
        self.head += count
        return chunk

    def split(self, chunk: Chunk, count: int) -> Chunk:
        """Shortens a chunk that was given out to `count` rows; returns the rest, which counts as given out."""
        rest = Chunk(chunk.position + count, chunk.count - count, chunk.lanes)
        chunk.count = count
        self.chunks.given(rest.position)
        return rest

    @property
    def has_waiting(self) -> bool:
        """Whether chunks that were cut wait for a worker: lost ones, or ones set aside."""
        return self.chunks.has_lost or (self.groups is not None and bool(self.groups.aside))

    def drop_unneeded(self) -> bool:
        """Counts waiting chunks that nobody needs any more as made; returns whether there were any."""
        low = self.low

        def is_needed(position: int, count: int) -> bool:
            return position + count > low and bool(self.lanes_at(position))

        gone = [] if self.groups is None else self.groups.drop(is_needed)
        for position in gone:
            self.chunks.made(position)
        return self.chunks.drop_lost(is_needed) or bool(gone)

    def filled(self, chunk: Chunk, bad: Iterable[BadRow]) -> None:
        """All rows of `chunk` are in the rings."""
        if self.chunks.is_made(chunk.position):
            return  # two workers have made it
        self.chunks.made(chunk.position)
        self.rows_filled += chunk.count
        self.bad.made(chunk, bad)

    def lanes_at(self, position: int) -> tuple[int, ...]:
        """The lanes in which a position is filled."""
        return tuple([lane.id for lane in self.lanes.values() if lane.start <= position])

    def took(self, chunk: Chunk, took: Took, *, decoded: bool = False) -> None:
        """Records how long a worker took to make `chunk`, for which it may have `decoded` a row group."""
        row_ns = self.row_ns(chunk.lanes)
        if decoded and row_ns is not None and self.groups is not None:
            self.groups.decoded(took.wall_ns - row_ns * chunk.count)
        else:
            self._pace = chunk.lanes, took.wall_ns // chunk.count
        if took.lanes_ns:
            self.spent.add(took.shared_ns, chunk.count)
            for lane, ns in zip(chunk.lanes, took.lanes_ns, strict=False):
                if lane in self.lanes:
                    self.lanes[lane].spent.add(ns, chunk.count)

    def row_ns(self, lanes: tuple[int, ...]) -> int | None:
        """Time for a row in all of `lanes`; None if the chunk made last had other lanes."""
        return self._pace[1] if self._pace is not None and self._pace[0] == lanes else None

    # -- announcements ------------------------------------------------------------------------------

    def announcements(self) -> list[Announce]:
        """Announces to each rank the finished batches that were not announced before."""
        watermark = self.watermark
        return [self._tell(c, watermark) for c in self.cursors.values() if c.present and watermark >= c.next_stop]

    def _tell(self, cursor: Cursor, watermark: int) -> Announce:
        since = cursor.announced
        self._ready = None
        while cursor.next_stop <= watermark:
            batch = cursor.line.peek()
            cursor.announced = batch.stop
            self.rows_delivered += batch.stop - batch.start
            cursor.line.advance()
            cursor.find_next()
        bad = self.bad.between(cursor.lane, since, cursor.announced)
        return Announce(cursor.id, cursor.announced, bad, cursor.moves)

    def owner(self, cursor: Cursor) -> int:
        """The uid of a cursor's job; a lane has one user."""
        return self.lanes[cursor.lane].uid
