"""The daemon's state as plain data: what `prepserver status --json` prints."""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

from prepserver import __version__
from prepserver.daemon.gpus import Gpus
from prepserver.daemon.jobs import Jobs
from prepserver.daemon.pool import WorkerPool
from prepserver.daemon.rings import Rings
from prepserver.schedule.scheduler import Scheduler
from prepserver.schedule.stream import Stream

_RATE_WINDOW_S = 10.0
_BUSY_MARKS = 10


class Rates:
    """Rows per second over the last ten seconds.

    Attributes:
        filled: Rows filled since the start, of all streams, also those that are gone.
    """

    def __init__(self) -> None:
        self.filled = 0
        self._marks: deque[tuple[float, int]] = deque()
        self._busy: deque[tuple[float, int]] = deque(maxlen=_BUSY_MARKS)

    def count(self, rows: int) -> None:
        """`rows` more were filled."""
        self.filled += rows

    def mark(self, now_s: float) -> None:
        """Call it about once a second."""
        if self._marks and self.filled > self._marks[-1][1]:
            self._busy.append((now_s - self._marks[-1][0], self.filled - self._marks[-1][1]))
        self._marks.append((now_s, self.filled))
        while len(self._marks) > 2 and now_s - self._marks[0][0] > _RATE_WINDOW_S:
            self._marks.popleft()

    @property
    def rows_per_s(self) -> float:
        """0 while too little is known."""
        if len(self._marks) < 2:
            return 0.0
        (t0, n0), (t1, n1) = self._marks[0], self._marks[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0

    @property
    def busy_rows_per_s(self) -> float:
        """Over the last ten seconds in which rows were made; 0 before. What to expect of a job that has paused."""
        seconds = sum(s for s, _ in self._busy)
        return sum(rows for _, rows in self._busy) / seconds if seconds > 0 else 0.0


def snapshot(
    *, started_s: float, runtime_dir: str, state: str, scheduler: Scheduler, jobs: Jobs, pool: WorkerPool,
    rings: Rings, rates: Rates, gpus: Gpus, state_dir: str,
) -> dict[str, Any]:  # fmt: skip
    """Everything at once; sizes in bytes, times in seconds."""
    now_s = time.monotonic()
    found: dict[str, Any] = {
        "version": __version__,
        "pid": os.getpid(),
        "state": state,
        "runtime_dir": runtime_dir,
        "state_dir": state_dir,
        "uptime_s": round(now_s - started_s, 3),
        "rows_per_s": round(rates.rows_per_s, 1),
        "rows_filled": rates.filled,
        "kernels": {"path": pool.kernels[0], "why": pool.kernels[1]},
        "memory": {"rings_bytes": rings.held_bytes, "budget_bytes": rings.budget_bytes},
        "workers": [_worker(seat, now_s) for seat in pool.seats],
        "streams": [_stream(stream, scheduler, rings) for stream in scheduler.streams.values()],
        "jobs": [_job(attachment, scheduler, now_s) for attachment in jobs.attachments.values()],
        "quarantined": {source: sorted(indices) for source, indices in scheduler.quarantined.items() if indices},
    }
    if gpus.last is not None:
        found["gpus"] = gpus.last
    return found


def _worker(seat: Any, now_s: float) -> dict[str, Any]:
    child = seat.child
    if child is None:
        return {"number": seat.number, "pid": None, "state": "starting", "restarts": seat.restarts}
    stats = child.page.read()
    alive_s = max(1e-9, now_s - seat.since_s)
    return {
        "number": seat.number,
        "pid": child.pid,
        "state": "starting" if child.pid is None else ("busy" if stats.busy else "idle"),
        "restarts": seat.restarts,
        "chunks": stats.tasks,
        "rows": stats.rows,
        "bad_rows": stats.bad_rows,
        "busy_fraction": round((stats.read_ns + stats.make_ns) / 1e9 / alive_s, 3),
        "read_s": round(stats.read_ns / 1e9, 3),
        "make_s": round(stats.make_ns / 1e9, 3),
    }


def _stream(stream: Any, scheduler: Scheduler, rings: Rings) -> dict[str, Any]:
    return {
        "id": stream.id,
        "samples": stream.n,
        "position": stream.low,
        "ready_upto": stream.watermark,
        "waits_for": scheduler.waits_for.get(stream.id),
        "rows_filled": stream.rows_filled,
        "rows_delivered": stream.rows_delivered,
        "sharing_factor": _sharing_factor(stream),
        "lanes": [
            {
                "id": lane.id,
                "uid": lane.key[1],
                "pipeline": lane.key[0][:12],
                "views": len(rings.held[lane.id].layout.images),
                "rows": lane.rows,
                "ring_bytes": rings.held[lane.id].layout.nbytes,
                "jobs": sum(1 for c in stream.readers if c.lane == lane.id and c.present),
            }
            for lane in stream.lanes.values()
        ],
    }


def _job(attachment: Any, scheduler: Scheduler, now_s: float) -> dict[str, Any]:
    stream = scheduler.stream_of(attachment.cursor)
    cursor = scheduler.cursor(attachment.cursor)
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
        "position": cursor.released,
        "ready_rows": max(0, cursor.announced - cursor.released),
        "batches": cursor.batches,
        "sharing_factor": _sharing_factor(stream),
        "wait_s": round(cursor.wait_ns / 1e9, 3),
        "attached_s": round(now_s - attachment.since_s, 3),
    }


def _sharing_factor(stream: Stream) -> float:
    """Rows handed to jobs for each that was made; 0 before the first."""
    return round(stream.rows_delivered / stream.rows_filled, 3) if stream.rows_filled else 0.0
