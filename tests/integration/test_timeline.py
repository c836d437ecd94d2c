"""What Perfetto's own trace processor finds in `client.timeline` and `prepserver trace` of a real job."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from prepclient import CenterCrop, PrepClient, SyntheticImages
from prepserver.cli import main
from tests.support.server import Server
from tests.support.traces import query, spans

pytestmark = pytest.mark.integration

ROWS, BATCH, STEPS = 64, 8, 20

ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"

COUNTS = "select case when name glob '* row*' then 'rows' else name end as name, count(*) as n from slice group by 1"

TRACKS = """
    select process.pid, process.name as process, coalesce(thread.name, process_track.name) as track
    from track
    left join thread_track on thread_track.id = track.id
    left join thread using (utid)
    left join process_track on process_track.id = track.id
    join process on process.upid = coalesce(thread.upid, process_track.upid)
    where track.id in (select track_id from slice)
    order by process.pid, track"""

NESTED = """
    select inside.name, outside.name as outside
    from slice as inside join slice as outside on inside.parent_id = outside.id group by 1, 2 order by 1, 2"""

OVERLAPS = """
    select name from (
        select name, dur, ts + dur as ended, lead(ts) over (partition by track_id, depth order by ts, id) as next
        from slice
    ) where ended > next or dur < 0"""

# From the chunk over the announcement to the copy, along one flow. `extract_arg` finds what a slice says of itself.
FLOWS = """
    select chunk_process.pid as worker, copy_process.pid as loop, copied.name as copied,
        extract_arg(chunk.arg_set_id, 'debug.position') as position,
        extract_arg(chunk.arg_set_id, 'debug.rows') as rows,
        extract_arg(told.arg_set_id, 'debug.upto') as upto,
        extract_arg(copied.arg_set_id, 'debug.start') as start,
        chunk.ts as began, chunk.ts + chunk.dur as made, told.ts as told, copied.ts as taken,
        computed.name as after
    from flow as first
    join flow as second on second.trace_id = first.trace_id and second.slice_out = first.slice_in
    join slice as chunk on chunk.id = first.slice_out
    join slice as told on told.id = first.slice_in
    join slice as copied on copied.id = second.slice_in
    left join flow as third on third.trace_id = first.trace_id and third.slice_out = second.slice_in
    left join slice as computed on computed.id = third.slice_in
    join thread_track as chunk_track on chunk_track.id = chunk.track_id
    join thread as chunk_thread on chunk_thread.utid = chunk_track.utid
    join process as chunk_process on chunk_process.upid = chunk_thread.upid
    left join thread_track as copy_thread_track on copy_thread_track.id = copied.track_id
    left join thread as copy_thread on copy_thread.utid = copy_thread_track.utid
    left join process_track as copy_track on copy_track.id = copied.track_id
    join process as copy_process on copy_process.upid = coalesce(copy_thread.upid, copy_track.upid)
    where told.name = 'announced'"""


def test_perfetto_reads_timelines_and_traces() -> None:
    with Server(workers=2) as server:
        files = {name: server.home / f"{name}.pftrace" for name in ("steps", "rest", "all")}
        recorded = threading.Thread(target=main, args=(
            ["trace", "--seconds", "2", "-o", str(files["all"]), "--runtime-dir", str(server.runtime_dir)],
        ))  # fmt: skip
        source = SyntheticImages(ROWS, (32, 32))
        with PrepClient(source, [CenterCrop(8)], batch_size=BATCH, job="a", runtime_dir=server.runtime_dir) as train:
            train.timeline(files["steps"], steps=STEPS)
            for _ in range(3):
                list(train)
            assert files["steps"].exists()
            train.timeline(files["rest"], steps=10**6)  # written when the client is closed
            recorded.start()
            while recorded.is_alive():
                list(train)
        workers = {pid: f"worker {number}" for number, pid in enumerate(server.workers())}
        found = {name: read(files[name], workers) for name in ("steps", "all")}
        rest = [name for name, *_ in spans(files["rest"].read_bytes())]
    assert rest.count("next") > STEPS
    counts, flows = found["steps"]
    assert (counts["next"], counts["copying"], counts["computing"]) == (STEPS, STEPS, STEPS - 3)  # not between epochs
    assert 0 < counts["loading"] <= STEPS
    assert counts["rows"] * 64 >= STEPS * BATCH  # no chunk has more
    had: dict[int, set[int]] = {start: set() for start in range(0, STEPS * BATCH, BATCH)}
    for flow in flows:
        had[flow["start"]] |= rows_of(flow)
    assert all(rows == set(range(start, start + BATCH)) for start, rows in had.items())
    assert sum(flow["after"] == "computing" for flow in flows) >= counts["computing"]
    counts, flows = found["all"]
    assert counts["copied"] > 0
    assert {flow["copied"] for flow in flows} == {"copied"}


def read(path: Path, workers: dict[int, str]) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """How many slices have which name, and the flows; checks what holds of every trace."""
    queries = (ERRORS, OVERLAPS, COUNTS, TRACKS, NESTED, FLOWS)
    errors, overlaps, counts, tracks, nested, flows = query(path.read_bytes(), *queries)
    assert not errors
    assert not overlaps
    loop = ["a rank 0: loop", "a rank 0: rows"] if path.stem == "all" else ["rows", "training loop"]
    mine = [(each["process"], each["track"]) for each in tracks if each["pid"] == os.getpid()]
    assert mine == [("job a", track) for track in loop]
    theirs = {each["pid"]: each["process"] for each in tracks if each["pid"] != os.getpid()}
    assert theirs
    assert theirs.items() <= workers.items()
    assert {each["track"] for each in tracks if each["pid"] in workers} == {"chunks"}
    inside = [] if path.stem == "all" else [("copying", "next"), ("loading", "next")]
    assert [(each["name"], each["outside"]) for each in nested] == inside
    assert flows
    for flow in flows:
        assert flow["worker"] in workers
        assert flow["loop"] == os.getpid()
        assert flow["began"] <= flow["made"] <= flow["told"] <= flow["taken"]  # one clock
        assert rows_of(flow)
        assert flow["upto"] >= flow["start"] + BATCH
    return {each["name"]: each["n"] for each in counts}, flows


def rows_of(flow: dict[str, Any]) -> set[int]:
    """The rows of a flow's chunk that its batch has."""
    made = range(flow["position"], flow["position"] + flow["rows"])
    return set(made) & set(range(flow["start"], flow["start"] + BATCH))
