"""Traces of track events, as Perfetto's UI (ui.perfetto.dev) and its trace processor read them.

A trace is a protobuf message. It needs so few fields that this module writes them itself; their numbers are those of
Perfetto's protos/perfetto/trace. All times are nanoseconds of CLOCK_MONOTONIC, which is the trace's clock, too. The
daemon gives its part as plain values; the client or command that asked for a trace makes the file.
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

MOST_CHUNKS = 4096  # for how many chunks a daemon remembers when they were made
MOST_RELEASES = 512  # for how many messages from a rank, and to it, a daemon remembers when they were sent

_BEGIN, _END, _INSTANT = 1, 2, 3  # TrackEvent.Type
_REALTIME, _MONOTONIC = 1, 3  # BuiltinClock


class MadeChunk(NamedTuple):
    """A chunk that a worker filled."""

    worker: int
    pid: int
    stream: int
    position: int  # of the first row
    rows: int
    began_ns: int  # when the worker began
    ended_ns: int  # when its rows were in the ring
    told_ns: int  # when the daemon had announced them
    read_ns: int  # how much of the time was spent on reading


class Told(NamedTuple):
    """A rank was told that all its rows below a position are ready."""

    at_ns: int
    upto: int


class Heard(NamedTuple):
    """What a rank reported: it needs no rows below a position, and totals of batches and of its loop's time."""

    at_ns: int
    upto: int
    batches: int
    wait_ns: int
    copy_ns: int
    own_ns: int


class Trace:
    """The events of a trace that is made at `now_ns` of CLOCK_MONOTONIC, which is `realtime_ns` of CLOCK_REALTIME."""

    def __init__(self, now_ns: int, realtime_ns: int) -> None:
        self._numbers = itertools.count(1)
        self._processes: dict[int, int] = {}
        self._out: list[bytes] = []
        clocks = b"".join(
            _field(1, _field(1, clock) + _field(2, at_ns))
            for clock, at_ns in ((_MONOTONIC, now_ns), (_REALTIME, realtime_ns))
        )
        self._packet(_field(6, clocks + _field(2, _MONOTONIC)))

    def track(self, pid: int, process: str, name: str, tid: int | None = None) -> int:
        """A track of a process, or of its thread `tid`; a process keeps the name that it was given first."""
        if pid not in self._processes:
            self._processes[pid] = self._described(_field(3, _field(1, pid) + _field(6, process)))
        if tid is None:
            return self._described(_field(5, self._processes[pid]) + _field(2, name))
        thread = _field(4, _field(1, pid) + _field(2, tid) + _field(5, name))
        return self._described(_field(5, self._processes[pid]) + thread)

    def flow(self) -> int:
        """The number of a new line of arrows, through all events that have it, in the order in which they begin."""
        return next(self._numbers)

    def begin(self, track: int, name: str, at_ns: int, flows: Iterable[int] = (), **more: float) -> None:
        """A span begins, inside the spans of its track that have not ended yet."""
        self._event(track, _BEGIN, at_ns, name, flows, more)

    def end(self, track: int, at_ns: int) -> None:
        """The last span that has begun on this track ends."""
        self._event(track, _END, at_ns)

    def span(self, track: int, name: str, begin_ns: int, end_ns: int, flows: Iterable[int] = (), **more: float) -> None:
        """A span that encloses no other one."""
        self.begin(track, name, begin_ns, flows, **more)
        self.end(track, max(begin_ns, end_ns))

    def instant(self, track: int, name: str, at_ns: int, flows: Iterable[int] = (), **more: float) -> None:
        """An event that takes no time."""
        self._event(track, _INSTANT, at_ns, name, flows, more)

    def chunks(self, chunks: Iterable[MadeChunk], flows: Mapping[MadeChunk, Sequence[int]]) -> None:
        """The workers' tracks, with the flows that begin at their chunks."""
        tracks: dict[int, int] = {}
        for each in sorted(chunks, key=lambda each: each.worker):
            if each.pid not in tracks:
                tracks[each.pid] = self.track(each.pid, f"worker {each.worker}", "chunks", each.pid)
            name = f"{each.rows} row{'s' * (each.rows != 1)}"
            self.span(
                tracks[each.pid], name, each.began_ns, each.ended_ns, flows.get(each, ()), stream=each.stream,
                position=each.position, rows=each.rows, read_ms=each.read_ns / 1e6,
                announced_after_ms=(each.told_ns - each.ended_ns) / 1e6,
            )  # fmt: skip

    def told(self, track: int, told: Mapping[Told, Sequence[int]]) -> None:
        """The daemon's announcements to a rank, with the flows that go through them."""
        for each, flows in told.items():
            self.instant(track, "announced", each.at_ns, flows, upto=each.upto)

    def content(self) -> bytes:
        """The file."""
        return b"".join(self._out)

    def _described(self, what: bytes) -> int:
        uuid = next(self._numbers)
        self._packet(_field(60, _field(1, uuid) + what))
        return uuid

    def _event(
        self, track: int, kind: int, at_ns: int, name: str = "", flows: Iterable[int] = (),
        more: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        event = _field(9, kind) + _field(11, track)
        if name:
            event += _field(22, "prepserver") + _field(23, name)
        event += b"".join(_tag(47, 1) + struct.pack("<Q", flow) for flow in flows)
        for key, value in (more or {}).items():
            number = _field(4, value) if isinstance(value, int) else _tag(5, 1) + struct.pack("<d", value)
            event += _field(4, _field(10, key) + number)
        self._packet(_field(8, at_ns) + _field(58, _MONOTONIC) + _field(11, event))

    def _packet(self, what: bytes) -> None:
        self._out.append(_field(1, what + _field(10, 1)))  # all packets are of one sequence


class Ways:
    """The ways of a job's rows: from their chunk over its announcement to the batch that takes them."""

    def __init__(self, trace: Trace, chunks: Sequence[MadeChunk], told: Sequence[Told]) -> None:
        self.of_chunks: dict[MadeChunk, list[int]] = {}  # flows that begin at a chunk
        self.of_told: dict[Told, list[int]] = {each: [] for each in told}  # through an announcement
        self._trace = trace
        self._told = list(self.of_told)  # positions grow
        self._chunks = sorted(chunks, key=lambda each: each.position)
        self._longest = max((each.rows for each in chunks), default=0)

    def to(self, start: int, stop: int, at_ns: int) -> list[int]:
        """Flows from each chunk with rows of [start, stop) to the batch that took them at `at_ns`."""
        at = bisect_left(self._told, stop, key=lambda each: each.upto)
        told = [each for each in self._told[at : at + 1] if each.at_ns <= at_ns]
        # A chunk may have been made twice, and only the first one was announced.
        by_ns = told[0].at_ns if told else at_ns
        first = bisect_left(self._chunks, start - self._longest, key=lambda each: each.position)
        end = bisect_left(self._chunks, stop, key=lambda each: each.position)
        found = []
        for chunk in self._chunks[first:end]:
            if start < chunk.position + chunk.rows and chunk.ended_ns <= by_ns:
                found.append(self._trace.flow())
                self.of_chunks.setdefault(chunk, []).append(found[-1])
        for each in told:
            self.of_told[each] += found
        return found


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers take ten bytes
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _field(number: int, value: int | str | bytes) -> bytes:
    """A field of a message: a number, a text, or bytes, such as those of another message."""
    if isinstance(value, int):
        return _tag(number, 0) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _tag(number, 2) + _varint(len(data)) + data
