"""Whether the facts that a coordinator keeps agree with each other."""

from __future__ import annotations

from collections import Counter

from prepserver.schedule.coordinator import Coordinator
from prepserver.schedule.stream import Stream
from prepserver.schedule.table import Table


def validate(coordinator: Coordinator) -> None:
    """Fails if two facts contradict each other."""
    table = coordinator.table
    read = {cursor: stream.id for stream in table.streams.values() for cursor in stream.cursors}
    assert read == table._stream_of, "the stream of each cursor"
    lanes = [lane for stream in table.streams.values() for lane in stream.lanes]
    assert len(lanes) == len(set(lanes)), "a lane is in two streams"
    for stream in table.streams.values():
        _validate_stream(table, stream)
    for job in table.jobs.values():
        places = {(table._stream_of[cursor], table.cursor(cursor).lane) for cursor in job.cursors.values()}
        assert len(places) == 1, f"the ranks of job {job.id} are in several places: {places}"
    _validate_workers(coordinator)
    waits_for = coordinator.waits_for
    assert all(early != into for early, into in waits_for.items()), "a stream waits for itself"
    capped = {stream.id for stream in table.streams.values() if stream.cap is not None}
    assert capped <= waits_for.keys(), f"streams {capped} are capped, but only these wait: {waits_for}"


def _validate_stream(table: Table, stream: Stream) -> None:
    at = f"stream {stream.id}: "
    assert {cursor.lane for cursor in stream.cursors.values()} == stream.lanes.keys(), f"{at}lanes that are read"
    kept = stream.low, stream.wanted, stream.ready_rows()
    stream.changed()
    assert kept == (stream.low, stream.wanted, stream.ready_rows()), f"{at}low, wanted and ready rows"
    window = f"{at}floor {stream.floor}, low {stream.low}, head {stream.head}"
    assert stream.floor <= stream.low, window
    assert stream.watermark <= stream.head, window
    for cursor in stream.cursors.values():
        assert cursor.job in table.jobs, f"{at}cursor {cursor.id} is a rank of no job"
        job = table.jobs[cursor.job]
        assert job.cursors.get(cursor.rank) == cursor.id, f"{at}rank {cursor.rank} of job {job.id}"
        assert job.uid == stream.owner(cursor), f"{at}the user of job {job.id}"


def _validate_workers(coordinator: Coordinator) -> None:
    workers = coordinator.workers
    held = [t for slot in workers.slots.values() for t in slot.tasks] + [
        t for ts in workers._stuck.values() for t in ts
    ]
    assert sorted(held) == sorted(workers.tasks), "tasks that workers hold"
    for stream in coordinator.table.streams.values():
        running = Counter(task.chunk.position for task in workers.tasks.values() if task.stream == stream.id)
        assert running == stream.chunks.running, f"stream {stream.id}: tasks"
        if stream.groups is not None:
            chunks = sorted((c.position, c.position + c.count) for each in stream.groups.aside.values() for c in each)
            aside = {position for position, _ in chunks}
            assert not chunks or stream.floor <= chunks[0][0], f"stream {stream.id}: rows that wait may be overwritten"
            starts = [*(position for position, _ in chunks[1:]), stream.head]
            assert all(end <= start for (_, end), start in zip(chunks, starts, strict=False)), (
                f"stream {stream.id}: rows wait twice"
            )
            assert not running.keys() & aside, f"stream {stream.id}: chunks run and wait"
            assert not any(map(stream.chunks.is_made, aside)), f"stream {stream.id}: made chunks wait"
    free = {worker for each in workers._free for worker in each}
    assert free == {slot.id for slot in workers.slots.values() if slot.takes_more}, "free workers"
