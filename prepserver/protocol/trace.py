"""Traces in Chrome's JSON format, which Perfetto's UI and chrome://tracing read; times are of CLOCK_MONOTONIC.

The daemon gives its part as plain values; whoever asked makes the file.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

MOST_CHUNKS = 4096
"""Chunks of which a daemon remembers when they were made."""
MOST_RELEASES = 512
"""Messages of a rank of which it remembers when they came."""


class MadeChunk(NamedTuple):
    """A chunk that a worker filled."""

    worker: int
    pid: int
    stream: int
    position: int  # of the first row
    rows: int
    began_ns: int  # when the worker began
    ended_ns: int  # when its rows were there
    told_ns: int  # when the daemon had announced them
    read_ns: int  # part of it that was spent reading


class Heard(NamedTuple):
    """Totals that a rank reported: batches, and the loop's time by its parts."""

    at_ns: int
    batches: int
    wait_ns: int
    copy_ns: int
    own_ns: int


class Place(NamedTuple):
    """A point on a track."""

    pid: int
    tid: int
    at_ns: int


class Trace:
    """The events of a trace."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._flows = 0

    def track(self, pid: int, tid: int, process: str, thread: str) -> None:
        """Names a process and one of its tracks."""
        for kind, name in (("process_name", process), ("thread_name", thread)):
            self._events.append({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}})

    def span(self, name: str, begin: Place, end_ns: int, **more: object) -> None:
        """Something that lasted; the spans of a track lie in each other or one after the other."""
        self._events.append({
            "ph": "X", "name": name, "cat": "prepserver", "pid": begin.pid, "tid": begin.tid, "ts": begin.at_ns / 1e3,
            "dur": max(0, end_ns - begin.at_ns) / 1e3, "args": more,
        })  # fmt: skip

    def flow(self, places: Sequence[Place]) -> None:
        """Arrows from span to span; each place lies within one."""
        self._flows += 1
        for number, place in enumerate(places):
            phase = "s" if number == 0 else "f" if number == len(places) - 1 else "t"
            self._events.append({
                "ph": phase, "name": "rows", "cat": "rows", "id": self._flows, "pid": place.pid, "tid": place.tid,
                "ts": place.at_ns / 1e3, **({"bp": "e"} if phase == "f" else {}),
            })  # fmt: skip

    def chunks(self, chunks: Iterable[MadeChunk]) -> None:
        """The workers' tracks."""
        named: set[int] = set()
        for each in chunks:
            if each.pid not in named:
                named.add(each.pid)
                self.track(each.pid, each.pid, f"worker {each.worker}", "chunks")
            self.span(
                f"{each.rows} rows", Place(each.pid, each.pid, each.began_ns), each.ended_ns,
                stream=each.stream, position=each.position, read_ms=each.read_ns / 1e6,
                announced_after_ms=(each.told_ns - each.ended_ns) / 1e6,
            )  # fmt: skip

    def heard(self, job: Mapping[str, Any], heard: Sequence[Heard]) -> None:
        """The track of a job as the daemon knows it: what its loop did between two messages."""
        pid, tid = int(job["pid"]), int(job["id"])
        self.track(pid, tid, f"job {job['name']}", f"rank {job['rank']}")
        for before, now in itertools.pairwise(heard):
            count = now.batches - before.batches
            self.span(
                f"{count} batch{'es' if count != 1 else ''}", Place(pid, tid, before.at_ns), now.at_ns,
                loading_ms=(now.wait_ns - before.wait_ns) / 1e6, copying_ms=(now.copy_ns - before.copy_ns) / 1e6,
                computing_ms=(now.own_ns - before.own_ns) / 1e6,
            )  # fmt: skip

    def text(self) -> str:
        """The file."""
        return json.dumps({"displayTimeUnit": "ms", "traceEvents": self._events}, separators=(",", ":"))
