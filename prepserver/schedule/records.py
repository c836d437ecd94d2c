"""Records of lanes, ranks, jobs, chunks and samples that the parts of the coordinator share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from prepserver.pipeline.batches import BatchLine
from prepserver.protocol.layout import Field
from prepserver.protocol.messages import Attach

ROUNDS_NEEDED = 2
"""A ring, and an early stream, has room for at least this many rounds of batches: with fewer, filling and reading would
take turns."""

CHUNK_BYTES = 16 << 20
"""Most bytes of the rows of a stream's first chunks in one ring, unless one row is larger: the rings have room for the
chunks of all workers."""

RECENT_SAMPLES = 8192  # the time of a sample is an average over about this many recent samples


def rows_of_chunk(fields: Iterable[Field]) -> int:
    """The most rows of these fields that a chunk may have because of their size."""
    return max(1, CHUNK_BYTES // max(1, sum(field.row_bytes for field in fields)))


@dataclass(frozen=True, slots=True)
class Took:
    """How long a chunk has taken, as its worker reports it."""

    wall_ns: int = 0  # wall time of the whole chunk
    shared_ns: int = 0  # work shared by all lanes: reading, including waits, and CPU time of decoding
    lanes_ns: tuple[int, ...] = ()  # CPU time of rendering each lane of the chunk; empty if there was only one


@dataclass(slots=True)
class Spent:
    """CPU time spent on some samples."""

    ns: float = 0.0
    samples: float = 0.0

    def add(self, ns: int, samples: int) -> None:
        """Counts `samples` that took `ns` together."""
        if self.samples > RECENT_SAMPLES:
            self.ns, self.samples = self.ns / 2, self.samples / 2
        self.ns += ns
        self.samples += samples

    @property
    def sample_ns(self) -> float:
        """Average time of a sample; 0 before the first."""
        return self.ns / self.samples if self.samples else 0.0


@dataclass(slots=True)
class Lane:
    """One pipeline of a stream with its ring."""

    id: int  # unique number, never reused
    key: tuple[str, int]  # what two jobs must have in common to share it (pipeline digest and uid)
    rows: int  # rows of its ring
    start: int  # first position that this stream fills in it
    oldest: int | None = None  # first position that was ever in its ring, if the lane came from another stream
    spent: Spent = field(default_factory=Spent)  # CPU time of rendering it, in chunks with several lanes
    pipeline: list[dict[str, Any]] = field(default_factory=list)  # wire form, for workers
    fields: tuple[Field, ...] = ()  # fields of a row
    chunk_rows_most: int = field(init=False)  # see `rows_of_chunk`

    def __post_init__(self) -> None:
        self.chunk_rows_most = rows_of_chunk(self.fields)

    @property
    def uid(self) -> int:
        """Its user."""
        return self.key[1]


@dataclass(slots=True)
class Cursor:
    """Where one rank of a job stands."""

    id: int  # unique number, never reused; clients know it as the job id
    lane: int  # the lane that it reads
    job: int  # its job
    line: BatchLine  # its batches; `line.peek()` is the next one to announce
    prefetch: int  # rows that it wants ready beyond `first_needed`
    released: int  # it needs no row below this position
    announced: int  # it was told that all rows below this position are ready
    present: bool = True  # False while its place is only reserved, until the rank attaches
    next_stop: int = 0  # end of the next batch to announce (`line.peek().stop`, cached)
    wait_ns: int = 0  # total time in `next()` up to the last batch but one, as the client reports it
    batches: int = 0  # batches handed to the training loop, as the client reports them
    asked: int = -1  # `announced` at the client's last Sync; -1 if it has sent a Release since
    lag: str = "wait"  # see `prepserver.protocol.messages.Attach`
    moved_at: int = 0  # where it moved last: its rows below this position are in rings that it had before
    moves: int = 0  # how often it has moved to another ring since it attached
    rank: int = 0  # its rank in the job

    def __post_init__(self) -> None:
        self.find_next()

    def find_next(self) -> None:
        """Caches the end of the next batch to announce; call it whenever `line` has moved.

        It skips empty batches (fewer rows left than ranks), which a client takes unannounced and may release.
        """
        while (batch := self.line.peek()).start == batch.stop:
            self.line.advance()
        self.next_stop = batch.stop

    def note_release(self, wait_ns: int, batches: int) -> None:
        """Notes the figures that come with a Release."""
        self.wait_ns = max(self.wait_ns, wait_ns)
        self.batches = max(self.batches, batches)
        self.asked = -1

    def note_sync(self) -> None:
        """Notes a Sync, which the client sends when it has been in `next()` for a while."""
        self.asked = self.announced

    @property
    def asked_in_vain(self) -> bool:
        """Whether it certainly waits: it sent Sync, and nothing was announced to it since."""
        return self.asked == self.announced

    @property
    def has_released_all(self) -> bool:
        """Whether it has released all announced rows, so that it waits for more or soon will."""
        return self.present and self.released >= self.announced

    @property
    def first_needed(self) -> int:
        """First position that it needs of this stream."""
        return max(self.released, self.moved_at)

    @property
    def round_rows(self) -> int:
        """Rows of one batch for each rank of its job."""
        plan = self.line.full_epoch
        return plan.batch_size * plan.world_size


@dataclass(slots=True)
class Job:
    """The ranks of one run that start at one position.

    A rank that has not attached yet has a cursor, too, so that its rows are kept.
    """

    id: int  # unique number, never reused
    run: tuple[Any, ...]  # what all ranks of a run have in common
    where: tuple[Any, ...]  # what ranks that share a place have in common as well
    attach: Attach  # the question of the first rank
    uid: int  # its user
    epoch_start: int  # position at which its epoch began
    position: int  # position of its first batch
    since_s: float  # when its first rank attached
    # rank to cursor, without ranks that left or whose places were freed
    cursors: dict[int, int] = field(default_factory=dict)
    no_room_s: float | None = None  # since when it lacks the memory to part from others; None if it need not part


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that holds a replacement."""

    position: int
    index: int  # the sample that could not be used
    reason: str  # path and cause
    lanes: tuple[int, ...] = ()  # the lanes in which it is bad; empty for all lanes of its chunk


@dataclass(slots=True)
class Chunk:
    """A run of positions that one worker fills: the unit of work."""

    position: int
    count: int
    lanes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Suspect:
    """The sample in hand when a worker died."""

    index: int | None  # None if it is one of several that were made at once
    lane: int | None = None  # the lane being rendered; None while it was read or decoded, which is for all lanes
