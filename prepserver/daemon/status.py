"""The daemon's state as plain data: most of what `prepserver status --json` prints."""

from __future__ import annotations

import time
from typing import Any

from prepserver.daemon.attachments import Attachment
from prepserver.daemon.rings import Rings
from prepserver.daemon.seat import Seat
from prepserver.daemon.watch import Watch, ring_fill, waits_for
from prepserver.schedule.pace import is_apart
from prepserver.schedule.records import Spent
from prepserver.schedule.stream import Stream
from prepserver.telemetry.verdict import judge


def snapshot(watch: Watch, rings: Rings) -> dict[str, Any]:
    """The state of all jobs; sizes in bytes, times in seconds, rates and fractions over the last ten seconds."""
    coordinator, pool, caches, now_s = watch.coordinator, watch.pool, watch.caches, time.monotonic()
    bad = {key: sorted(found) for key, found in coordinator.strikes.quarantined.items() if found}
    found: dict[str, Any] = {
        "rows_per_s": round(watch.rates.rows_per_s, 1),
        "rows_filled": coordinator.rows_made,
        "kernels": {"path": pool.kernels[0], "why": pool.kernels[1]},
        "sandbox": pool.sandbox,
        "plugins": pool.plugins,
        "cores": {"usable": watch.cores, "busy": watch.cores_busy},
        "memory": {
            "rings_bytes": rings.held_bytes,
            "budget_bytes": rings.budget_bytes,
            "caches_bytes": caches.memory_bytes,
            "caches_budget_bytes": caches.budget_bytes,
        },
        "caches": caches.snapshot(),
        "engines": [
            {"name": engine.process.name, "state": "up" if engine.is_up else "down", "why": engine.why}
            for engine in pool.engines
        ],
        "workers": [_worker(seat, watch) for seat in pool.seats],
        "streams": [_stream(stream, watch, rings) for stream in coordinator.table.streams.values()],
        "jobs": [_job(attachment, watch, now_s) for attachment in watch.attachments.values()],
        "quarantined": {source: samples for (source, pipeline), samples in bad.items() if not pipeline},
        "quarantined_for_pipelines": [
            {"source": source, "pipeline": pipeline, "samples": samples}
            for (source, pipeline), samples in bad.items()
            if pipeline
        ],
    }
    if watch.gpus.last is not None:
        found["gpus"] = watch.gpus.last
    return found


def _worker(seat: Seat, watch: Watch) -> dict[str, Any]:
    child = seat.child
    if child is None:
        return {"number": seat.number, "pid": None, "state": "starting", "restarts": seat.restarts}
    stats = child.page.read()
    slot = watch.coordinator.workers.slots.get(child.ticket)
    remote = {
        "received_bytes_per_s": _rounded(watch.rates.per_s(("received", child.ticket))),
        "held_fraction": _fraction(watch.rates.per_s(("held", child.ticket))),
        "cannot_read": [{"stream": stream, "why": why} for stream, (_, why) in (slot.barred if slot else {}).items()],
    }
    return {
        "number": seat.number,
        "pid": child.pid,
        "host": child.host,
        **(remote if child.host else {}),
        "state": "starting" if child.pid is None else ("busy" if stats.busy else "idle"),
        "restarts": seat.restarts,
        "chunks": stats.tasks,
        "rows": stats.rows,
        "bad_rows": stats.bad_rows,
        "busy_fraction": _fraction(watch.rates.per_s(("busy", child.ticket))),
        "starved_fraction": _fraction(watch.rates.per_s(("starved", child.ticket))),
        "read_s": round(stats.read_ns / 1e9, 3),
        "make_s": round(stats.make_ns / 1e9, 3),
    }


def _stream(stream: Stream, watch: Watch, rings: Rings) -> dict[str, Any]:
    return {
        "id": stream.id,
        "samples": stream.n,
        "position": stream.low,
        "ready_upto": stream.watermark,
        "waits_for": watch.coordinator.waits_for.get(stream.id),
        "rows_filled": stream.rows_filled,
        "rows_delivered": stream.rows_delivered,
        "sharing_factor": _sharing_factor(stream),
        "reads_everywhere": "/" in stream.spec.places,
        "apart": is_apart(stream.key),
        "rows_per_s": _rounded(watch.rates.per_s(("stream rows", stream.id))),
        "stages_ms_per_sample": {name: round(1e3 * spent_s, 4) for name, spent_s in watch.stages_of(stream).items()},
        "announce_ms": watch.announce_ms(stream),
        "shared_ms_per_sample": _sample_ms(stream.spent),
        "lanes": [
            {
                "id": lane.id,
                "uid": lane.uid,
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


def _job(attachment: Attachment, watch: Watch, now_s: float) -> dict[str, Any]:
    attach, coordinator = attachment.attach, watch.coordinator
    stream = coordinator.table.stream_of(attachment.cursor)
    cursor = coordinator.table.cursor(attachment.cursor)
    epoch, inside = divmod(max(0, cursor.released - coordinator.job_of(cursor.id).epoch_start), stream.n)
    return {
        "id": attachment.cursor,
        "name": attach.job,
        "rank": attach.rank,
        "world_size": attach.world_size,
        "absent_ranks": sorted(c.rank for c in coordinator.table.ranks(coordinator.job_of(cursor.id), present=False)),
        "num_shards": attach.num_shards,
        "shard_index": attach.shard_index,
        "pid": attachment.peer.pid,
        "uid": attachment.peer.uid,
        "stream": stream.id,
        "lane": cursor.lane,
        "batch_size": attach.batch_size,
        "epoch": attach.epoch + epoch,
        "epoch_fraction": round(inside / stream.n, 4),
        "position": cursor.released,
        "ready_rows": max(0, cursor.announced - cursor.released),
        "batches": cursor.batches,
        "images": cursor.batches * attach.batch_size,
        "sharing_factor": _sharing_factor(stream),
        "images_per_s": _rounded(watch.rates.per_s(("images", attachment.cursor))),
        "wait_s": round(cursor.wait_ns / 1e9, 3),
        "wait_fraction": 1.0 if cursor.asked_in_vain else _fraction(watch.rates.per_s(("waited", attachment.cursor))),
        "waits_for": waits_for(cursor, stream, coordinator),
        "copy_s": round(attachment.copy_ns / 1e9, 3),
        "own_s": round(attachment.own_ns / 1e9, 3),
        "ring_fill": round(ring_fill(cursor, stream.lanes[cursor.lane].rows), 3),
        "lag_rows": max(0, max(c.released for c in stream.cursors.values() if c.present) - cursor.released),
        "verdict": judge(watch.facts(attachment)).to_plain(),
        "attached_s": round(now_s - attachment.since_s, 3),
    }


def _sample_ms(spent: Spent) -> float | None:
    """CPU time for a sample; None if it was never measured because there was only one lane."""
    return round(spent.sample_ns / 1e6, 3) if spent.samples else None


def _fraction(seconds_per_s: float | None) -> float | None:
    return None if seconds_per_s is None else round(min(1.0, max(0.0, seconds_per_s)), 3)


def _rounded(per_s: float | None) -> float | None:
    return None if per_s is None else round(per_s, 1)


def _sharing_factor(stream: Stream) -> float:
    """Rows delivered per row made; 0 before the first."""
    return round(stream.rows_delivered / stream.rows_filled, 3) if stream.rows_filled else 0.0
