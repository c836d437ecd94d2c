"""Chooses where a new job starts: on a running stream, or on a new one.

If the shared stream has not reached that position, a new stream can start there early: see `prepserver.schedule.early`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prepserver.protocol.work import MAX_LANES
from prepserver.schedule.early import START_EARLY_S, allowance
from prepserver.schedule.stream import Stream


@dataclass(frozen=True, slots=True)
class Request:
    """The part of a job's question that decides with whom it shares."""

    stream_key: str  # see `Stream.key`
    lane_key: tuple[str, int]  # see `Lane.key`
    n: int  # positions of an epoch
    rows_needed: int  # fewest rows of a ring (two rounds of batches)
    epoch_start: int  # where its epoch begins
    position: int  # its first row
    join_wait_s: float  # longest wait for a shared stream
    is_free: bool = False  # whether its epoch may begin anywhere on a running stream that the order allows
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
    rows: int = 0  # fewest rows of a new ring that the other jobs need; 0 if its own job needs more
    into: int | None = None  # the stream that its early stream waits for, or None


def place(
    request: Request, streams: Iterable[Stream], rows_per_s: float, waits_for: Mapping[int, int] | None = None
) -> Place:
    """The best start for `request` among the running `streams`.

    A job joins the stream on which it waits least, if that is at most `join_wait_s`. Unless it is free to begin
    elsewhere, it shares a stream only if that still holds its position or will soon make it. If the wait exceeds
    `START_EARLY_S`, the job starts at once on an early stream.

    The pool fills `rows_per_s`, which turns rows into a wait. `waits_for` says for which stream each early one waits.
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
        if _rests(stream, running.get((waits_for or {}).get(stream.id, -1)), first, request.join_wait_s * rate):
            continue
        is_far = wait_rows > START_EARLY_S * rate and first > stream.head
        if stream.cap is None and is_far and request.early and allowance(request.n, request.rows_needed // 2) > 0:
            found = Place(None, None, found.epoch_start, found.position, found.rows, stream.id)
        # An existing lane is free; a new one costs memory and its augmentations.
        cost = wait_rows + (0 if found.lane is not None else 1)
        if best is None or cost < best[0]:
            best = (cost, found)
    return Place(None, None, request.epoch_start, request.position) if best is None else best[1]


def _on(request: Request, stream: Stream) -> Place | None:
    lane = next((x for x in stream.lanes.values() if x.key == request.lane_key and x.rows >= request.rows_needed), None)
    # The smallest ring bounds the window of all lanes: if it cannot hold two rounds of every job's batches, all jobs
    # stop for good.
    if any(x.rows < request.rows_needed for x in stream.lanes.values()):
        return None
    if lane is None and len(stream.lanes) >= MAX_LANES:
        return None
    # A new lane's ring must hold two rounds of every job's batches as well.
    rows = max((2 * c.round_rows for c in stream.cursors.values()), default=0) if lane is None else 0
    # A lane has rows from its start on; a new lane, from the stream's head on.
    earliest = max(stream.low, lane.start) if lane is not None else stream.head
    position, epoch_start = request.position, request.epoch_start
    if request.is_free:
        position = epoch_start = stream.next_start(earliest)
    if position + request.skip < earliest:
        return None
    lane_id = lane.id if lane is not None else None
    return Place(stream.id, lane_id, epoch_start, position, rows if rows > request.rows_needed else 0)


def _rests(stream: Stream, into: Stream | None, first: int, most_rows: float) -> bool:
    """Whether an early stream will rest before `first`, or at its cap for longer than this job may wait."""
    if stream.cap is None:
        return False
    return first >= stream.cap or (into is not None and stream.cap - into.watermark > most_rows)
