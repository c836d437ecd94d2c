"""What the coordinator knows of lanes, ranks, jobs, chunks and samples: records that its parts share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from prepserver.pipeline.batches import BatchLine
from prepserver.protocol.layout import Field
from prepserver.protocol.messages import Attach

RECENT_SAMPLES = 8192
"""The time that samples take is the average of about this many of the latest ones."""


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
        """Counts `samples` more, which took `ns` together."""
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
    """One pipeline of a stream with its ring.

    Attributes:
        id: Its number, for ever.
        key: What two jobs must agree in to share it (pipeline digest and uid).
        rows: Of its ring.
        start: First position that is filled in it.
        oldest: First position that was ever in it, if not `start`: it came from another stream.
        spent: In rendering it, where it shared the decode with other lanes.
        pipeline: Wire form, for workers.
        fields: Of a row.
    """

    id: int
    key: tuple[str, int]
    rows: int
    start: int
    oldest: int | None = None
    spent: Spent = field(default_factory=Spent)
    pipeline: list[dict[str, Any]] = field(default_factory=list)
    fields: tuple[Field, ...] = ()


@dataclass(slots=True)
class Cursor:
    """Where one rank of a job stands.

    Attributes:
        id: Its number, for ever; clients know it as the job id.
        lane: Whose rows it reads.
        job: Which it is a rank of.
        line: Its batches; `line.peek()` is the next one that it will be told of.
        prefetch: Rows that it wants ready ahead of where it stands.
        released: It needs no row below.
        announced: It was told that all rows below are ready.
        present: False while this rank has not attached yet: its place is kept.
        next_stop: End of the next batch that it will be told of (`line.peek().stop`, cached).
        wait_ns: Time spent in `next()`, as the client says: at the end of the last batch but one.
        batches: Handed to the training loop, as the client says.
        asked: How far it had been told when the client asked for more; -1 if it went on since.
        lag: What happens when it holds others back; see `Attach`.
        entered: Its rows below this position are not in this stream's rings: it came from another stream.
        moves: How often it was moved to another ring since it attached.
        rank: Which rank of its job it is.
    """

    id: int
    lane: int
    job: int
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
    rank: int = 0

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
        """Notes what the client tells along with what it releases."""
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


@dataclass(slots=True)
class Job:
    """The ranks of one run: they start at one place, and a rank that has not attached yet keeps its place there.

    Attributes:
        id: Its number.
        run: What the ranks of a run agree in, wherever they stand.
        where: What ranks that share a place agree in, too.
        attach: The question of the rank that came first.
        uid: Of its user.
        epoch_start: Where its epoch began.
        position: Where its run of batches begins.
        since_s: When it came.
        cursors: Rank to cursor; the ranks that have left or were given up are not in it.
        no_room_s: Since when it cannot part from others for want of memory; None while it need not.
    """

    id: int
    run: tuple[Any, ...]
    where: tuple[Any, ...]
    attach: Attach
    uid: int
    epoch_start: int
    position: int
    since_s: float
    cursors: dict[int, int] = field(default_factory=dict)
    no_room_s: float | None = None


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


@dataclass(frozen=True, slots=True)
class Suspect:
    """What a worker was at when it died.

    Attributes:
        index: The sample.
        lane: Whose row was being rendered; None while the sample was read and decoded, which is for all.
    """

    index: int
    lane: int | None = None


@dataclass(frozen=True, slots=True)
class Meeting:
    """A stream whose jobs can all go on in another.

    Attributes:
        stream: Which ends.
        into: Which they join.
        lanes: For each lane of `stream` the lane of `into` that has the same rows; itself if it goes along.
    """

    stream: int
    into: int
    lanes: dict[int, int]
