"""The daemon's state as plain data: what `prepserver status --json` prints."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from prepserver import __version__
from prepserver.daemon.attachments import Attachment, Attachments
from prepserver.daemon.caches import Caches
from prepserver.daemon.gpus import Gpus
from prepserver.daemon.pool import WorkerPool
from prepserver.daemon.rings import Rings
from prepserver.schedule.coordinator import Coordinator
from prepserver.schedule.lag import holding_back
from prepserver.schedule.pace import is_apart
from prepserver.schedule.records import Cursor, Spent
from prepserver.schedule.stream import Stream
from prepserver.telemetry.window import Window

Key = tuple[Literal["busy", "images", "waited"], int]
"""A count: a worker's seconds of work (by ticket), or a rank's images or seconds of waiting (by cursor)."""

_BUSY_MARKS = 10


class Rates:
    """How fast counts have grown over the last ten seconds: rows made, and whatever else `mark` is given."""

    def __init__(self) -> None:
        self._rows = Window()
        self._others: dict[Key, Window] = {}
        self._busy: deque[tuple[float, float]] = deque(maxlen=_BUSY_MARKS)

    def mark(self, now_s: float, rows_made: int, counts: Mapping[Key, float] | None = None) -> None:
        """Notes all counts; call it about once a second. A count that is missing is forgotten."""
        last = self._rows.last
        if last is not None and rows_made > last[1]:
            self._busy.append((now_s - last[0], rows_made - last[1]))
        self._rows.mark(now_s, rows_made)
        counts = counts or {}
        self._others = {key: self._others[key] if key in self._others else Window() for key in counts}
        for key, count in counts.items():
            self._others[key].mark(now_s, count)

    def per_s(self, key: Key) -> float | None:
        """Growth of another count; None if too little is known."""
        window = self._others.get(key)
        return window.per_s if window is not None else None

    @property
    def rows_per_s(self) -> float:
        """Rows filled per second; 0 if too little is known."""
        return self._rows.per_s or 0.0

    @property
    def busy_rows_per_s(self) -> float:
        """The rate in the last ten seconds in which rows were made: what to expect when a paused job goes on."""
        seconds = sum(s for s, _ in self._busy)
        return sum(rows for _, rows in self._busy) / seconds if seconds > 0 else 0.0


def counts(coordinator: Coordinator, attachments: Attachments, pool: WorkerPool) -> dict[Key, float]:
    """The counts of each worker and each job for `Rates`."""
    found: dict[Key, float] = {}
    now_ns = time.monotonic_ns()
    for seat in pool.seats:
        if seat.child is not None:
            stats = seat.child.page.read()
            # The page counts a task when it ends; until then, count at least the current sample.
            in_hand_ns = max(0, now_ns - stats.started_ns) if stats.busy else 0
            found["busy", seat.child.ticket] = (stats.read_ns + stats.make_ns + in_hand_ns) / 1e9
    for number, attachment in attachments.items():
        cursor = coordinator.table.cursor(number)
        found["images", number] = cursor.batches * attachment.attach.batch_size
        found["waited", number] = cursor.wait_ns / 1e9
    return found


def snapshot(
    *, started_s: float, runtime_dir: str, state: str, coordinator: Coordinator, attachments: Attachments,
    pool: WorkerPool, rings: Rings, caches: Caches, rates: Rates, gpus: Gpus, state_dir: str,
) -> dict[str, Any]:  # fmt: skip
    """The whole state; sizes in bytes, times in seconds, rates and fractions over the last ten seconds."""
    now_s = time.monotonic()
    found: dict[str, Any] = {
        "version": __version__,
        "pid": os.getpid(),
        "state": state,
        "runtime_dir": runtime_dir,
        "state_dir": state_dir,
        "uptime_s": round(now_s - started_s, 3),
        "rows_per_s": round(rates.rows_per_s, 1),
        "rows_filled": coordinator.rows_made,
        "kernels": {"path": pool.kernels[0], "why": pool.kernels[1]},
        "sandbox": pool.sandbox,
        "plugins": pool.plugins,
        "memory": {
            "rings_bytes": rings.held_bytes,
            "budget_bytes": rings.budget_bytes,
            "caches_bytes": caches.memory_bytes,
            "caches_budget_bytes": caches.budget_bytes,
        },
        "caches": caches.snapshot(),
        "workers": [_worker(seat, rates) for seat in pool.seats],
        "streams": [_stream(stream, coordinator, rings) for stream in coordinator.table.streams.values()],
        "jobs": [_job(attachment, coordinator, rates, now_s) for attachment in attachments.values()],
        "quarantined": {
            source: sorted(found)
            for (source, pipeline), found in coordinator.strikes.quarantined.items()
            if found and not pipeline
        },
        "quarantined_for_pipelines": [
            {"source": source, "pipeline": pipeline, "samples": sorted(found)}
            for (source, pipeline), found in coordinator.strikes.quarantined.items()
            if found and pipeline
        ],
    }
    if gpus.last is not None:
        found["gpus"] = gpus.last
    return found


def _worker(seat: Any, rates: Rates) -> dict[str, Any]:
    child = seat.child
    if child is None:
        return {"number": seat.number, "pid": None, "state": "starting", "restarts": seat.restarts}
    stats = child.page.read()
    return {
        "number": seat.number,
        "pid": child.pid,
        "state": "starting" if child.pid is None else ("busy" if stats.busy else "idle"),
        "restarts": seat.restarts,
        "chunks": stats.tasks,
        "rows": stats.rows,
        "bad_rows": stats.bad_rows,
        "busy_fraction": _fraction(rates.per_s(("busy", child.ticket))),
        "read_s": round(stats.read_ns / 1e9, 3),
        "make_s": round(stats.make_ns / 1e9, 3),
    }


def _stream(stream: Stream, coordinator: Coordinator, rings: Rings) -> dict[str, Any]:
    return {
        "id": stream.id,
        "samples": stream.n,
        "position": stream.low,
        "ready_upto": stream.watermark,
        "waits_for": coordinator.waits_for.get(stream.id),
        "rows_filled": stream.rows_filled,
        "rows_delivered": stream.rows_delivered,
        "sharing_factor": _sharing_factor(stream),
        "reads_everywhere": stream.spec is not None and "/" in stream.spec.places,
        "apart": is_apart(stream.key),
        "shared_ms_per_sample": _sample_ms(stream.spent),
        "lanes": [
            {
                "id": lane.id,
                "uid": lane.key[1],
                "pipeline": lane.key[0][:12],
                "fields": [field.name for field in rings.held[lane.id].layout.fields],
                "rows": lane.rows,
                "ring_bytes": rings.held[lane.id].layout.nbytes,
                "jobs": sum(1 for c in stream.cursors.values() if c.lane == lane.id and c.present),
                "render_ms_per_sample": _sample_ms(lane.spent),
            }
            for lane in stream.lanes.values()
        ],
    }


def _job(attachment: Attachment, coordinator: Coordinator, rates: Rates, now_s: float) -> dict[str, Any]:
    stream = coordinator.table.stream_of(attachment.cursor)
    cursor = coordinator.table.cursor(attachment.cursor)
    epoch, inside = divmod(max(0, cursor.released - coordinator.job_of(cursor.id).epoch_start), stream.n)
    images_per_s = rates.per_s(("images", attachment.cursor))
    return {
        "id": attachment.cursor,
        "name": attachment.attach.job,
        "rank": attachment.attach.rank,
        "world_size": attachment.attach.world_size,
        "num_shards": attachment.attach.num_shards,
        "shard_index": attachment.attach.shard_index,
        "pid": attachment.peer.pid,
        "uid": attachment.peer.uid,
        "stream": stream.id,
        "lane": cursor.lane,
        "batch_size": attachment.attach.batch_size,
        "epoch": attachment.attach.epoch + epoch,
        "epoch_fraction": round(inside / stream.n, 4),
        "position": cursor.released,
        "ready_rows": max(0, cursor.announced - cursor.released),
        "batches": cursor.batches,
        "sharing_factor": _sharing_factor(stream),
        "images_per_s": None if images_per_s is None else round(images_per_s, 1),
        "wait_s": round(cursor.wait_ns / 1e9, 3),
        "wait_fraction": 1.0 if cursor.waits else _fraction(rates.per_s(("waited", attachment.cursor))),
        "waits_for": _waits_for(cursor, stream, coordinator),
        "attached_s": round(now_s - attachment.since_s, 3),
    }


def _waits_for(cursor: Cursor, stream: Stream, coordinator: Coordinator) -> str | None:
    """What a rank waits for now; None if it has rows to read.

    ``workers``, ``job ID`` (its unreleased rows fill the ring), ``ranks`` (of its own job, not attached yet),
    ``stream ID`` (the shared stream that it will join) or ``place`` (its start position).
    """
    if not cursor.waits_now:
        return None
    if stream.cap is not None and stream.head >= stream.cap and stream.id in coordinator.waits_for:
        return f"stream {coordinator.waits_for[stream.id]}"
    if cursor.need > stream.head:
        return "place"
    present = {c.job: c.id for c in stream.cursors.values() if c.present}
    for slow, others in holding_back(stream, coordinator.chunk_rows, is_still=False):
        if cursor in others:
            return f"job {present.get(slow.job, slow.id)}"
    absent = any(not c.present and c.job == cursor.job and c.need == stream.low for c in stream.cursors.values())
    return "ranks" if absent and stream.limit - stream.head < coordinator.chunk_rows else "workers"


def _sample_ms(spent: Spent) -> float | None:
    """CPU time for a sample; None if it was never measured, because there was only one lane."""
    return round(spent.sample_ns / 1e6, 3) if spent.samples else None


def _fraction(seconds_per_s: float | None) -> float | None:
    return None if seconds_per_s is None else round(min(1.0, max(0.0, seconds_per_s)), 3)


def _sharing_factor(stream: Stream) -> float:
    """Rows delivered per row made; 0 before the first."""
    return round(stream.rows_delivered / stream.rows_filled, 3) if stream.rows_filled else 0.0
