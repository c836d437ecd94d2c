"""What a trace holds, read back as JSON."""

from __future__ import annotations

import json
from typing import Any

from prepserver.protocol.trace import Heard, MadeChunk, Place, Trace


def events(trace: Trace, phase: str) -> list[dict[str, Any]]:
    return [event for event in json.loads(trace.text())["traceEvents"] if event["ph"] == phase]


def test_each_worker_is_named_once_and_its_chunks_are_spans() -> None:
    trace = Trace()
    trace.chunks([MadeChunk(3, 77, 1, at, 16, 1000 * at, 1000 * at + 500, 1000 * at + 700, 100) for at in (1, 17)])
    assert [event["args"]["name"] for event in events(trace, "M")] == ["worker 3", "chunks"]
    assert [(event["pid"], event["ts"], event["dur"]) for event in events(trace, "X")] == [(77, 1, 0.5), (77, 17, 0.5)]
    assert events(trace, "X")[0]["args"] == {
        "stream": 1, "position": 1, "read_ms": 0.0001, "announced_after_ms": 0.0002,
    }  # fmt: skip


def test_a_flow_begins_and_ends_within_spans() -> None:
    trace = Trace()
    trace.flow([Place(1, 2, 3000), Place(1, 2, 4000), Place(5, 6, 7000)])
    trace.flow([Place(1, 2, 3000), Place(5, 6, 7000)])
    phases = [(event["ph"], event["id"], event["ts"]) for event in json.loads(trace.text())["traceEvents"]]
    assert phases == [("s", 1, 3), ("t", 1, 4), ("f", 1, 7), ("s", 2, 3), ("f", 2, 7)]


def test_a_job_has_a_span_between_two_of_its_messages() -> None:
    trace = Trace()
    heard = [Heard(1000, 0, 0, 0, 0), Heard(9000, 2, 1_000_000, 2_000_000, 3_000_000), Heard(9500, 3, 0, 0, 0)]
    trace.heard({"pid": 4, "id": 9, "name": "a", "rank": 0}, heard)
    first, second = events(trace, "X")
    assert (first["name"], first["pid"], first["tid"], first["ts"], first["dur"]) == ("2 batches", 4, 9, 1, 8)
    assert first["args"] == {"loading_ms": 1, "copying_ms": 2, "computing_ms": 3}
    assert second["name"] == "1 batch"
