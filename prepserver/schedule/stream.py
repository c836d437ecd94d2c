"""One running stream: the window of positions that exist right now, and who is where in it.

```
      floor            low          watermark        head        limit
        |               |               |              |            |
  ...---+===============+===============+======.=.=====+............+---> positions
        ^ a worker may  ^ the slowest   ^ all rows     ^ never      ^ floor + rows of the smallest
          still write     cursor          below are      given out    ring: beyond it a row would
          from here                       in the ring    yet          overwrite one that is needed
```

A row may be filled again when every cursor has released past it *and* no worker still runs a chunk that
holds it: a worker that was given up on (stuck in the kernel, or raced by another) may yet write its old
bytes.
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


@dataclass(slots=True)
class Stream:
    """See the module.

    Attributes:
        id: Its number, for ever.
        key: What two jobs must agree in to share it (source listing, order, seed).
        source: Digest of the source's listing.
        n: Samples: positions of a pass.
        next_start: Smallest position at or after the given one at which an epoch may begin.
        head: Next position never given to a worker.
        spec: What workers are told of it.
        cap: Nothing is filled from here on, for now: see `prepserver.schedule.early`.
        gate: Nothing is filled from here on before another stream has joined here, or not: see there.
        lanes: By number.
        cursors: The ranks that read it.
        bad: Its bad rows.
        chunks: What is given out, in work, made and lost.
        spent: In what lanes share: reading and decoding.
        served_ns: Time of workers that it was given, in the account that `Dispatch` keeps for all streams.
        last_served: Number of the chunk that it was given last.
        rows_filled: Rows that were made.
        rows_delivered: Rows that ranks were told of.
        suspects: Start of a chunk -> samples with strikes in it, and in which pipelines.
        twice: Starts of chunks that were given out twice and are not made yet.
        half_made: Chunks that one of two has made, while the other ends; with their bad rows.
        parted_s: When it came of a parting, if it did.
        failed: Tasks that failed in a row, by the lane that is to blame; None where none is.
    """

    id: int
    key: str
    source: str
    n: int
    next_start: Callable[[int], int]
    head: int
    spec: work.AddStream | None = None
    cap: int | None = None
    gate: int | None = None
    lanes: dict[int, Lane] = field(default_factory=dict)
    cursors: dict[int, Cursor] = field(default_factory=dict)
    bad: BadRows = field(default_factory=BadRows)
    chunks: Chunks = field(default_factory=Chunks)
    spent: Spent = field(default_factory=Spent)
    served_ns: int = 0
    last_served: int = 0
    rows_filled: int = 0
    rows_delivered: int = 0
    suspects: dict[int, set[tuple[str, int]]] = field(default_factory=dict)
    twice: set[int] = field(default_factory=set)
    half_made: dict[int, list[BadRow]] = field(default_factory=dict)
    parted_s: float | None = None
    failed: Counter[int | None] = field(default_factory=Counter)
    _pace: tuple[tuple[int, ...], int] | None = None  # lanes of the chunk that was done last, and time for a row of it
    _low: int | None = None  # these three are kept because every event asks for them; see `changed`
    _wanted: int | None = None
    _ready: int | None = None

    # -- the window ---------------------------------------------------------------------------------

    def changed(self) -> None:
        """A cursor came, went or was moved: call it after every such change of `cursors`."""
        self._low = self._wanted = self._ready = None

    def advanced(self, cursor: Cursor, before: int) -> bool:
        """A cursor has released more. Whether the window may have moved.

        Args:
            cursor: Which.
            before: Its `need` before that.
        """
        self._ready = None
        if self._wanted is not None and cursor.need + cursor.prefetch > self._wanted:
            self._wanted = cursor.need + cursor.prefetch
        elif before > self.low:
            return False  # neither the slowest nor the foremost
        if before == self._low:
            self._low = None
        return True

    @property
    def low(self) -> int:
        """Position of the slowest cursor (`head` if there is none)."""
        if not self.cursors:
            return self.head
        if self._low is None:
            self._low = min(c.need for c in self.cursors.values())
        return self._low

    @property
    def wanted(self) -> int:
        """First position that no cursor wants to have ready yet."""
        if self._wanted is None:
            self._wanted = max(c.need + c.prefetch for c in self.cursors.values())
        return self._wanted

    @property
    def floor(self) -> int:
        """No row from here on may be overwritten."""
        low, written = self.low, self.chunks.first_written
        return low if written is None else min(low, written)

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
        # nothing below its oldest was ever in a lane's ring
        ends = [
            max(floor, lane.start if lane.oldest is None else lane.oldest) + lane.rows for lane in self.lanes.values()
        ]
        return min(self.wanted, *ends) if self.cap is None else min(self.wanted, self.cap, *ends)

    @property
    def ring_rows(self) -> int:
        """Rows of the smallest ring; there is one."""
        return min(lane.rows for lane in self.lanes.values())

    def hunger(self) -> float:
        """0 where nothing is given out ahead of the slowest job, 1 where its window is full."""
        return (self.head - self.low) / max(1, self.ring_rows)

    def ready_rows(self) -> int:
        """Rows that the job with least of them was told of and has not released: 0 where one waits."""
        # `released` is ahead of `announced` where other ranks' rows, or those that drop_last leaves out, lie between
        if self._ready is None:
            self._ready = max(0, min((c.announced - c.released for c in self.cursors.values() if c.present), default=0))
        return self._ready

    # -- what is made -------------------------------------------------------------------------------

    def next_chunk(self, most: int, least: int) -> Chunk | None:
        """Takes the next run of positions to fill, or None while the window is full.

        Args:
            most: Rows in a chunk.
            least: With room for fewer, the window counts as full.
        """
        low = self.low
        if (lost := self.chunks.next_lost()) is not None:
            return Chunk(*lost, self.lanes_at(lost[0]))
        # Below its start the rows of a lane that came from another stream are there, and nobody else may need them.
        self.head = max(self.head, low, min((lane.start for lane in self.lanes.values()), default=0))
        count = min(most, self.limit - self.head)
        if self.gate is not None and self.gate >= self.head:
            count = min(count, self.gate - self.head)
        # Crumbs cost a message each; wait for a whole chunk while there is plenty ready.
        if count <= 0 or (count < least and self.hunger() > 0.5):
            return None
        # a lane that starts inside the chunk must not miss its first rows
        count = min([count, *(lane.start - self.head for lane in self.lanes.values() if lane.start > self.head)])
        chunk = Chunk(self.head, count, self.lanes_at(self.head))
        self.chunks.given(chunk.position)
        self.head += count
        return chunk

    def drop_unneeded(self) -> bool:
        """Gives up lost chunks that nobody needs any more: they count as made. Whether there were any."""
        low = self.low
        return self.chunks.drop_lost(lambda position, count: position + count > low and bool(self.lanes_at(position)))

    def filled(self, chunk: Chunk, bad: Iterable[BadRow]) -> None:
        """All rows of `chunk` are in the rings."""
        if self.chunks.is_made(chunk.position):
            return  # it was made twice; the other was first
        self.chunks.made(chunk.position)
        self.rows_filled += chunk.count
        self.bad.made(chunk, bad, self.lanes)

    def lanes_at(self, position: int) -> tuple[int, ...]:
        """The lanes in which a position is filled."""
        return tuple([lane.id for lane in self.lanes.values() if lane.start <= position])

    def took(self, chunk: Chunk, took: Took) -> None:
        """A worker has made `chunk`, in this time."""
        self._pace = chunk.lanes, took.wall_ns // chunk.count
        if took.lanes_ns:
            self.spent.add(took.shared_ns, chunk.count)
            for lane, ns in zip(chunk.lanes, took.lanes_ns, strict=False):
                if lane in self.lanes:
                    self.lanes[lane].spent.add(ns, chunk.count)

    def row_ns(self, lanes: tuple[int, ...]) -> int | None:
        """Time for a row in `lanes`, if the chunk that was done last was one in these."""
        return self._pace[1] if self._pace is not None and self._pace[0] == lanes else None

    # -- who is told --------------------------------------------------------------------------------

    def announcements(self) -> list[Announce]:
        """What its ranks can be told now that they were not told before."""
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

    def repeat(self, cursor: Cursor) -> Announce:
        """What a rank was told last, for one that asks again."""
        bad = self.bad.between(cursor.lane, cursor.released, cursor.announced)
        return Announce(cursor.id, cursor.announced, bad, cursor.moves)

    def forget_released(self) -> None:
        """Drops what was kept about rows that everybody has released."""
        if self.bad:
            # not `low`: a job that has moved here was not told yet of its last rows elsewhere
            self.bad.forget_below(min((c.released for c in self.cursors.values()), default=self.head))

    def owner(self, cursor: Cursor) -> int:
        """The user whose job `cursor` is a rank of: no two users share a lane."""
        return self.lanes[cursor.lane].key[1]
