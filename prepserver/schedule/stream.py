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

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from prepserver.pipeline.batches import BatchLine

BAD_REASONS_TOLD = 64
"""Reasons in one announcement; beyond it only positions are told, to keep the message small."""


RECENT_SAMPLES = 8192
"""What samples have taken is the average of about so many of the latest ones."""


@dataclass(frozen=True, slots=True)
class Took:
    """What a worker says that a chunk has taken.

    Attributes:
        wall_ns: Time for all of it.
        shared_ns: For what all lanes share: reading, with its waits, and CPU time in decoding.
        lanes_ns: CPU time in rendering, for each lane of the chunk; empty where there was only one.
    """

    wall_ns: int = 0
    shared_ns: int = 0
    lanes_ns: tuple[int, ...] = ()


@dataclass(slots=True)
class Spent:
    """CPU time that went into some samples."""

    ns: float = 0.0
    samples: float = 0.0

    def add(self, ns: int, samples: int) -> None:
        """So many more."""
        if self.samples > RECENT_SAMPLES:
            self.ns, self.samples = self.ns / 2, self.samples / 2
        self.ns += ns
        self.samples += samples

    @property
    def sample_ns(self) -> float:
        """For one sample; 0 before the first."""
        return self.ns / self.samples if self.samples else 0.0


@dataclass(slots=True)
class Lane:
    """One pipeline of the stream with its ring.

    Attributes:
        id: The daemon's number.
        key: What two jobs must agree in to share it (pipeline digest and uid).
        rows: Of its ring.
        start: First position that is filled in it.
        oldest: First position that was ever in it, if not `start`: it came from another stream.
        spent: In rendering it, where it shared the decode with other lanes.
    """

    id: int
    key: tuple[str, int]
    rows: int
    start: int
    oldest: int | None = None
    spent: Spent = field(default_factory=Spent)


@dataclass(slots=True)
class Cursor:
    """Where one rank of a job stands.

    Attributes:
        id: The daemon's number.
        lane: Whose rows it reads.
        group: The job that it is a rank of.
        line: Its batches; `line.peek()` is the next one that it will be told of.
        prefetch: Rows that it wants ready ahead of where it stands.
        released: It needs no row below.
        announced: It was told that all rows below are ready.
        present: False while this rank of the job has not attached yet: its place is kept.
        next_stop: End of the next batch that it will be told of (`line.peek().stop`, cached).
        wait_ns: Time spent in `next()`, as the client says: at the end of the last batch but one.
        batches: Handed to the training loop, as the client says.
        asked: How far it had been told when the client asked for more; -1 if it went on since.
        lag: What happens when it holds others back; see `Attach`.
        entered: Its rows below this position are not in this stream's rings: it came from another stream.
        moves: How often it was moved to another ring since it attached.
    """

    id: int
    lane: int
    group: int
    line: BatchLine
    prefetch: int
    released: int
    announced: int
    present: bool = True
    next_stop: int = 0
    wait_ns: int = 0
    batches: int = 0
    asked: int = -1
    lag: str = "wait"
    entered: int = 0
    moves: int = 0

    def __post_init__(self) -> None:
        self.find_next()

    def find_next(self) -> None:
        """Caches the end of the next batch to tell of; to be called when `line` has moved.

        Empty batches (fewer rows left than ranks) are passed over: a client takes them without being told, and
        may release past them.
        """
        while (batch := self.line.peek()).start == batch.stop:
            self.line.advance()
        self.next_stop = batch.stop

    def says(self, wait_ns: int, batches: int) -> None:
        """What the client tells along with what it releases."""
        self.wait_ns = max(self.wait_ns, wait_ns)
        self.batches = max(self.batches, batches)
        self.asked = -1

    def asks(self) -> None:
        """The client has been in `next()` for a while, and says so."""
        self.asked = self.announced

    @property
    def waits(self) -> bool:
        """Whether it is known to wait now: it asked, and was told nothing since."""
        return self.asked == self.announced

    @property
    def waits_now(self) -> bool:
        """Whether it has released all that it was told of: it waits for more, or will at once."""
        return self.present and self.released >= self.announced

    @property
    def need(self) -> int:
        """It needs no row of this stream below."""
        return max(self.released, self.entered)

    @property
    def round_rows(self) -> int:
        """Rows of a round of its job's batches."""
        plan = self.line.full_epoch
        return plan.batch_size * plan.world_size


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that holds a replacement.

    Attributes:
        position: Which row.
        index: The sample that could not be used.
        reason: Path and cause.
        lanes: In which lanes; empty for all of them.
    """

    position: int
    index: int
    reason: str
    lanes: tuple[int, ...] = ()


@dataclass(slots=True)
class Chunk:
    """A run of positions that one worker fills: the unit of work."""

    position: int
    count: int
    lanes: tuple[int, ...]


@dataclass(slots=True)
class Stream:
    """See the module.

    Attributes:
        id: The daemon's number.
        key: What two jobs must agree in to share it (source listing, order, seed).
        source: Digest of the source's listing.
        n: Samples: positions of a pass.
        next_start: Smallest position at or after the given one at which an epoch may begin.
        head: Next position never given to a worker.
        cursors: The ranks that read it.
        cap: Nothing is filled from here on, for now: see `prepserver.schedule.early`.
        gate: Nothing is filled from here on before another stream has joined here, or not: see there.
        spent: In what lanes share: reading and decoding.
        served_ns: Time of workers that it was given, in the account that `Scheduler` keeps for all streams.
    """

    id: int
    key: str
    source: str
    n: int
    next_start: Callable[[int], int]
    head: int
    cap: int | None = None
    gate: int | None = None
    lanes: dict[int, Lane] = field(default_factory=dict)
    cursors: dict[int, Cursor] = field(default_factory=dict)
    bad: dict[int, list[BadRow]] = field(default_factory=dict)
    rows_filled: int = 0
    rows_delivered: int = 0
    last_served: int = 0
    served_ns: int = 0
    spent: Spent = field(default_factory=Spent)
    _pace: tuple[tuple[int, ...], int] | None = None  # lanes of the chunk that was done last, and time for a row of it
    _redo: list[tuple[int, int]] = field(default_factory=list)
    _unfilled: list[int] = field(default_factory=list)  # heap of starts of chunks given out; lazily cleaned
    _filled: set[int] = field(default_factory=set)
    _low: int | None = None  # these three are kept because they are asked for with every event; see `changed`
    _wanted: int | None = None
    _ready: int | None = None
    _running: dict[int, int] = field(default_factory=dict)  # task -> start
    _running_at: dict[int, int] = field(default_factory=dict)  # start -> tasks that run it
    _starts: list[int] = field(default_factory=list)  # heap of those starts; lazily cleaned

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
        heap = self._starts
        while heap and self._running_at.get(heap[0], 0) == 0:
            heapq.heappop(heap)
        low = self.low
        return min(low, heap[0]) if heap else low

    @property
    def watermark(self) -> int:
        """All rows in [low, watermark) are in the rings."""
        heap = self._unfilled
        while heap and heap[0] in self._filled:
            self._filled.discard(heapq.heappop(heap))
        return heap[0] if heap else self.head

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

    def owner(self, cursor: Cursor) -> int:
        """The user whose job `cursor` is a rank of: no two users share a lane."""
        return self.lanes[cursor.lane].key[1]

    @property
    def is_written(self) -> bool:
        """Whether some worker may still write into the rings."""
        return bool(self._running)

    def ready_rows(self) -> int:
        """Rows that the job with least of them was told of and has not released: 0 where one waits."""
        # `released` is ahead of `announced` where other ranks' rows, or those that drop_last leaves out, lie between
        if self._ready is None:
            self._ready = max(0, min((c.announced - c.released for c in self.cursors.values() if c.present), default=0))
        return self._ready

    @property
    def ring_rows(self) -> int:
        """Rows of the smallest ring; there is one."""
        return min(lane.rows for lane in self.lanes.values())

    def hunger(self) -> float:
        """0 where nothing is given out ahead of the slowest job, 1 where its window is full."""
        low = self.low
        return (self.head - low) / max(1, self.ring_rows)

    def next_chunk(self, most: int, least: int) -> Chunk | None:
        """Takes the next run of positions to fill, or None while the window is full.

        Args:
            most: Rows in a chunk.
            least: With room for fewer, the window counts as full.
        """
        low = self.low
        while self._redo:
            position, count = heapq.heappop(self._redo)
            if not self._is_filled(position):  # by the first of two that made it
                return Chunk(position, count, self._lanes_at(position))
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
        chunk = Chunk(self.head, count, self._lanes_at(self.head))
        heapq.heappush(self._unfilled, chunk.position)
        self.head += count
        return chunk

    @property
    def has_lost(self) -> bool:
        """Whether chunks are to be made again."""
        return bool(self._redo)

    def drop_unneeded(self) -> bool:
        """Gives up lost chunks that nobody needs any more: they count as filled. Whether there were any."""
        if not self._redo:
            return False
        low, kept = self.low, []
        for position, count in self._redo:
            if position + count > low and self._lanes_at(position):
                kept.append((position, count))
            else:
                self._filled.add(position)
        dropped = len(kept) < len(self._redo)
        if dropped:
            heapq.heapify(kept)
            self._redo = kept
        return dropped

    def started(self, task: int, chunk: Chunk) -> None:
        """A worker was given `chunk` as `task`."""
        start = self._running[task] = chunk.position
        tasks = self._running_at.get(start, 0)
        if not tasks:
            heapq.heappush(self._starts, start)
        self._running_at[start] = tasks + 1

    def ended(self, task: int) -> None:
        """No worker runs `task` any more: its rows will not be written by it."""
        start = self._running.pop(task, None)
        if start is None:
            return
        tasks = self._running_at[start] - 1
        if tasks:
            self._running_at[start] = tasks
        else:
            del self._running_at[start]

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

    @property
    def next_lanes(self) -> tuple[int, ...]:
        """Lanes of the next chunk that was never given out."""
        return self._lanes_at(self.head)

    def filled(self, chunk: Chunk, bad: Iterable[BadRow]) -> None:
        """All rows of `chunk` are in the rings."""
        if self._is_filled(chunk.position):
            return  # it was made twice; the other was first
        self._filled.add(chunk.position)
        self.rows_filled += chunk.count
        for position in range(chunk.position, chunk.position + chunk.count) if self.bad else ():
            self._unsay(position, chunk.lanes)  # what an earlier run of the same chunk said
        for row in bad:
            # "all lanes" is all of this chunk: one that came with its ring has these rows from elsewhere
            named = row.lanes or all(lane in chunk.lanes for lane in self.lanes)
            self.bad.setdefault(row.position, []).append(row if named else replace(row, lanes=chunk.lanes))

    def _unsay(self, position: int, lanes: tuple[int, ...]) -> None:
        rows = self.bad.pop(position, ())
        others = [(row, tuple(x for x in row.lanes if x not in lanes)) for row in rows]
        if kept := [replace(row, lanes=left) for row, left in others if left]:
            self.bad[position] = kept

    def _is_filled(self, position: int) -> bool:
        return position < self.watermark or position in self._filled

    def lost(self, chunk: Chunk) -> None:
        """Whoever had `chunk` will not finish it: it is made again, first of all."""
        heapq.heappush(self._redo, (chunk.position, chunk.count))

    def announcements(self, cursor: Cursor, watermark: int) -> tuple[int, tuple[tuple[int, int, str], ...]] | None:
        """What `cursor` can be told now that it was not told before, or None."""
        if watermark < cursor.next_stop or not cursor.present:
            return None
        since = cursor.announced
        self._ready = None
        while cursor.next_stop <= watermark:
            batch = cursor.line.peek()
            cursor.announced = batch.stop
            self.rows_delivered += batch.stop - batch.start
            cursor.line.advance()
            cursor.find_next()
        return cursor.announced, self.bad_between(cursor.lane, since, cursor.announced)

    def bad_between(self, lane: int, start: int, stop: int) -> tuple[tuple[int, int, str], ...]:
        """(position, sample index, reason) of the replaced rows of `lane` in [start, stop)."""
        if not self.bad:
            return ()
        found = [
            row
            for position in sorted(p for p in self.bad if start <= p < stop)
            for row in self.bad[position]
            if not row.lanes or lane in row.lanes
        ]
        return tuple(
            (row.position, row.index, row.reason if i < BAD_REASONS_TOLD else "") for i, row in enumerate(found)
        )

    def rename_bad(self, renamed: dict[int, list[int]]) -> None:
        """Lanes go on under other names: what was said of their bad rows is said of those."""
        if not any(row.lanes for rows in self.bad.values() for row in rows):
            return
        for position, rows in self.bad.items():
            self.bad[position] = [
                replace(row, lanes=tuple(new for lane in row.lanes for new in (lane, *renamed.get(lane, ()))))
                for row in rows
            ]

    def name_lanes(self, names: dict[int, int] | None = None) -> None:
        """What was said of bad rows in all lanes is said of each by name, as another lane may come with its ring.

        Args:
            names: Other names for some of them.
        """
        for position, rows in self.bad.items():
            lanes = tuple((names or {}).get(lane, lane) for lane in self._lanes_at(position))
            self.bad[position] = [row if row.lanes else replace(row, lanes=lanes) for row in rows]

    def forget_released(self) -> None:
        """Drops what was kept about rows that everybody has released."""
        if self.bad:
            # not `low`: a job that has moved here was not told yet of its last rows elsewhere
            low = min((c.released for c in self.cursors.values()), default=self.head)
            for position in [p for p in self.bad if p < low]:
                del self.bad[position]

    def _lanes_at(self, position: int) -> tuple[int, ...]:
        return tuple([lane.id for lane in self.lanes.values() if lane.start <= position])
