"""Chooses where a new job starts: on a running stream, on a new one, or early (`prepserver.schedule.early`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from prepserver.protocol.work import MAX_LANES
from prepserver.schedule.early import BEHIND_S, START_EARLY_S, allowance
from prepserver.schedule.records import ROUNDS_NEEDED
from prepserver.schedule.stream import Stream


@dataclass(frozen=True, slots=True)
class Request:
    """The part of a rank's question that decides with which jobs it shares."""

    stream_key: str  # see `Stream.key`
    lane_key: tuple[str, int]  # see `Lane.key`
    n: int  # positions of an epoch
    rows_needed: int  # fewest rows of a ring: `ROUNDS_NEEDED` rounds of its batches
    epoch_start: int  # where its epoch begins
    position: int  # its first row
    join_wait_s: float  # longest wait for a shared stream
    is_free: bool = False  # whether its epoch may begin wherever the order allows, and so on any running stream
    skip: int = 0  # rows from `position` on that are not needed any more
    early: bool = True  # whether it may start early; False if there is no memory for that
    rows_wanted: int = 0  # rows of a new ring, if there is memory


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job starts."""

    stream: int | None  # the stream to join, or None for a new one
    lane: int | None  # the lane to join, or None for a new one
    epoch_start: int  # start of the job's epoch
    position: int  # first row
    rows: int = 0  # fewest rows of a new ring that other jobs need; 0 if its own job needs more
    into: int | None = None  # the stream that its early stream will wait for; None without an early start
    ahead: int | None = None  # the stream that will wait for its new stream, which begins slightly behind it


def choose_place(
    request: Request, streams: Iterable[Stream], rows_per_s: float, waits_for: Mapping[int, int] = MappingProxyType({}),
    would_wait: Callable[[Stream], bool] = lambda _: False,
) -> Place:  # fmt: skip
    """The best start for `request` among the running `streams`.

    A job joins the stream on which it waits least, if that is at most `join_wait_s`. Unless it is free to begin
    anywhere, that stream must still hold its position or reach it soon. If the wait exceeds `START_EARLY_S`, the job
    starts at once: on a new stream just behind that stream, if that one waits for it; else on an early stream.

    `rows_per_s` is the rate of the pool, which turns rows into a wait. `waits_for` maps each early stream to the stream
    that it waits for. `would_wait` says whether a stream waits for one that begins slightly behind it.
    """
    rate = max(1.0, rows_per_s)
    best: tuple[int, Place] | None = None
    running = {stream.id: stream for stream in streams}
    for stream in running.values():
        if stream.key != request.stream_key:
            continue
        found = _on(request, stream)
        if found is None:
            continue
        first = found.position + request.skip
        wait_rows = max(0, first - stream.watermark)
        if wait_rows > request.join_wait_s * rate:
            continue
        if _rests(stream, running.get(waits_for.get(stream.id, -1)), first, request.join_wait_s * rate):
            continue
        is_far = wait_rows > START_EARLY_S * rate and first > stream.head
        round_rows = request.rows_needed // ROUNDS_NEEDED
        if stream.cap is None and is_far and request.early and allowance(request.n, round_rows) > 0:
            behind = _behind(request, stream, rate) if would_wait(stream) else None
            found = behind or Place(None, None, found.epoch_start, found.position, found.rows, stream.id)
            wait_rows = wait_rows if behind is None else 0
        # An existing lane is free; a new one costs memory and its augmentations.
        cost = wait_rows + (0 if found.lane is not None else 1)
        if best is None or cost < best[0]:
            best = (cost, found)
    return Place(None, None, request.epoch_start, request.position) if best is None else best[1]


def _on(request: Request, stream: Stream) -> Place | None:
    lane = next((x for x in stream.lanes.values() if x.key == request.lane_key and x.rows >= request.rows_needed), None)
    # The smallest ring bounds the window of all lanes. If it is too small for the batches of one job, all jobs stop for
    # good; that holds for the ring of a new lane, too.
    if any(x.rows < request.rows_needed for x in stream.lanes.values()):
        return None
    if lane is None and len(stream.lanes) >= MAX_LANES:
        return None
    rows = ROUNDS_NEEDED * stream.largest_round if lane is None else 0
    # A lane has rows from its start on, and a new lane from the stream's head on.
    earliest = max(stream.low, lane.start) if lane is not None else stream.head
    position, epoch_start = request.position, request.epoch_start
    if request.is_free:
        position = epoch_start = stream.next_start(earliest)
    if position + request.skip < earliest:
        return None
    lane_id = lane.id if lane is not None else None
    return Place(stream.id, lane_id, epoch_start, position, rows if rows > request.rows_needed else 0)


def _behind(request: Request, stream: Stream, rate: float) -> Place | None:
    """A place in a new stream just behind `stream`, where an epoch may begin; None if there is none nearby.

    A moment later the two meet, because `stream` waits. Otherwise jobs that start together, such as those of a sweep,
    could miss each other by a batch, and would meet only where the next epoch can begin.
    """
    start = stream.next_start(max(0, stream.low - stream.ring_rows))
    # The new stream must come near without its job, which may compile a model first.
    is_near = start < stream.head <= start + min(BEHIND_S * rate, 3 * stream.ring_rows // 2)
    if not is_near or not request.is_free or request.skip:
        return None
    rows = ROUNDS_NEEDED * stream.largest_round
    return Place(None, None, start, start, rows if rows > request.rows_needed else 0, ahead=stream.id)


def _rests(stream: Stream, into: Stream | None, first: int, most_rows: float) -> bool:
    """Whether an early stream stops before `first`, or waits at its cap for longer than this job may wait."""
    if stream.cap is None:
        return False
    return first >= stream.cap or (into is not None and stream.cap - into.watermark > most_rows)
