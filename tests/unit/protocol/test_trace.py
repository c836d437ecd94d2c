"""What a trace holds, read back message by message."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from prepserver.protocol.trace import MadeChunk, Told, Trace, Ways
from tests.support.traces import Message, message, packets, spans


def chunk(position: int, began_ns: int, worker: int = 3) -> MadeChunk:
    return MadeChunk(worker, 77, 1, position, 16, began_ns, began_ns + 500, began_ns + 700, 100)


def events(trace: Trace) -> Iterator[Message]:
    return (message(each) for packet in packets(trace.content()) for each in packet.get(11, ()))


def flows(trace: Trace) -> list[list[int]]:
    """Of all slices and instants."""
    return [[struct.unpack("<Q", each)[0] for each in event.get(47, ())] for event in events(trace) if 23 in event]


def test_a_trace_has_one_clock() -> None:
    trace = Trace(5, 1_800_000_000_000_000_000)
    trace.instant(trace.track(4, "job", "rows"), "announced", 9)
    first, *_, last = packets(trace.content())
    snapshot = message(first[6][0])
    assert [message(each) for each in snapshot[1]] == [{1: [3], 2: [5]}, {1: [1], 2: [1_800_000_000_000_000_000]}]
    assert snapshot[2] == [3]
    assert (last[8], last[58]) == ([9], [3])


def test_processes_and_workers_are_named_once() -> None:
    trace = Trace(0, 0)
    trace.track(4, "job a", "rows")
    trace.track(4, "job b", "training loop", 5)
    trace.chunks([chunk(1, 1000), chunk(17, 17000)], {})
    found = [message(each) for packet in packets(trace.content()) for each in packet.get(60, ())]
    processes = [message(each[3][0]) for each in found if 3 in each]
    assert [(each[1], each[6]) for each in processes] == [([4], [b"job a"]), ([77], [b"worker 3"])]
    threads = [message(each[4][0]) for each in found if 4 in each]
    assert [(each[1], each[2], each[5]) for each in threads] == [
        ([4], [5], [b"training loop"]), ([77], [77], [b"chunks"]),
    ]  # fmt: skip
    assert [each[2] for each in found if 2 in each] == [[b"rows"]]
    assert [each[5] for each in found if 5 in each] == [found[0][1]] * 2 + [found[3][1]]  # their processes
    assert len({each[1][0] for each in found}) == len(found)


def test_a_chunk_says_what_it_was() -> None:
    trace = Trace(0, 0)
    trace.chunks([chunk(1, 1000), chunk(17, 17000)._replace(rows=1)], {})
    assert spans(trace.content()) == [("16 rows", 1000, 1500), ("1 row", 17000, 17500)]
    notes = {message(each)[10][0]: message(each) for each in next(events(trace))[4]}
    assert {name: note[4][0] for name, note in notes.items() if 4 in note} == {
        b"stream": 1, b"position": 1, b"rows": 16,
    }  # fmt: skip
    assert {name: struct.unpack("<d", note[5][0])[0] for name, note in notes.items() if 5 in note} == {
        b"read_ms": 0.0001, b"announced_after_ms": 0.0002,
    }  # fmt: skip


def test_numbers_may_be_negative_and_spans_not() -> None:
    trace = Trace(0, 0)
    trace.span(trace.track(1, "job", "rows"), "copying", 50, 40, much=-3)
    assert spans(trace.content()) == [("copying", 50, 50)]
    assert message(next(events(trace))[4][0])[4] == [(1 << 64) - 3]


def test_rows_go_from_chunks_over_announcements_to_batches() -> None:
    trace = Trace(0, 0)
    chunks = [chunk(0, 1000), chunk(16, 2000), chunk(32, 3000)]
    told = [Told(1600, 16), Told(2600, 32)]
    ways = Ways(trace, chunks, told)
    one, two = ways.to(0, 8, 9000), ways.to(8, 24, 9000)
    assert ways.of_chunks == {chunks[0]: [one[0], two[0]], chunks[1]: [two[1]]}
    assert ways.of_told == {told[0]: one, told[1]: two}
    trace.chunks(chunks, ways.of_chunks)
    trace.told(trace.track(4, "job", "rows"), ways.of_told)
    assert flows(trace) == [[one[0], two[0]], [two[1]], [], one, two]


def test_arrows_do_not_go_back_in_time() -> None:
    ways = Ways(Trace(0, 0), [chunk(0, 1000), chunk(0, 2000)], [Told(1600, 16)])
    assert len(ways.to(0, 8, 9000)) == 1  # the other one was made too late to be announced
    assert len(ways.to(0, 8, 1550)) == 1  # not announced yet: a rank that attached anew may have them
    assert ways.to(0, 8, 1200) == []
    assert len(ways.to(8, 24, 9000)) == 2  # what announced them is forgotten
