"""Finds pipelines that make a shared stream slow for other users. Pure.

A chunk is filled in all lanes of its stream before any job gets it. So a pipeline that renders one sample a second
limits all other jobs of the stream to that rate. Among jobs of one user that is allowed: a sweep shares on purpose.
Between users the jobs of the slow lanes part for good, to a stream with a separate key.

The evidence is CPU time for the same samples, which a suspended worker or a busy machine does not change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from prepserver.schedule.lag import Apart, Parting
from prepserver.schedule.records import Lane
from prepserver.schedule.stream import Stream

FACTOR = 4.0
"""The limit for a user's lanes: this many times what reading, decoding and the least demanding other user's lanes take
together. Above 1 the other user would already be faster alone with half of the workers; the limit is higher because a
parting is final and samples vary."""

EVIDENCE_S = 1.0  # CPU time that lanes must have taken before they part: usually that of some dozens of samples

_APART = "/"  # other keys are hex digits

LEAST_SAMPLES = 4
"""A lane with fewer measured samples does not count yet, because a worker's first samples take longer."""


def apart_key(key: str, uid: int) -> str:
    """The key of the streams for a user's slow pipelines, which have left streams of key `key`."""
    return f"{key}{_APART}{uid}"


def is_apart(key: str) -> bool:
    """Whether a stream of this key is for slow pipelines."""
    return _APART in key


def slow_lanes(lanes: Iterable[Lane], shared_ns: float) -> list[Lane]:
    """The lanes that make a stream slow for other users; never all of them.

    A user keeps its lanes, the fastest first, while together they take at most `FACTOR` times as long as the stream
    would take for the least demanding other user alone. `shared_ns` is the time to read and decode a sample.
    """
    every = sorted(lanes, key=lambda lane: (lane.spent.sample_ns, lane.id))
    wanted: defaultdict[int, float] = defaultdict(float)
    for lane in every:
        wanted[lane.uid] += lane.spent.sample_ns
    if len(wanted) < 2:
        return []
    kept: defaultdict[int, float] = defaultdict(float)
    slow = []
    for lane in every:
        least = min(ns for uid, ns in wanted.items() if uid != lane.uid)
        if kept[lane.uid] + lane.spent.sample_ns > FACTOR * (shared_ns + least):
            slow.append(lane)
        else:
            kept[lane.uid] += lane.spent.sample_ns
    return slow


def slow_partings(stream: Stream) -> list[Parting]:
    """Partings, one for each user, of jobs whose pipelines make a stream slow for other users."""
    shared_ns = stream.spent.sample_ns
    measured = [lane for lane in stream.lanes.values() if lane.spent.samples >= LEAST_SAMPLES]
    slow = slow_lanes(measured, shared_ns)
    rest_ns = shared_ns + sum(lane.spent.sample_ns for lane in measured if lane not in slow)
    found = []
    for uid in sorted({lane.uid for lane in slow}):
        lanes = {lane.id: lane.spent for lane in slow if lane.uid == uid}
        if sum(spent.ns for spent in lanes.values()) >= EVIDENCE_S * 1e9:
            jobs = tuple(sorted({c.job for c in stream.cursors.values() if c.lane in lanes}))
            apart = Apart(uid, sum(spent.sample_ns for spent in lanes.values()), rest_ns)
            found.append(Parting(stream.id, jobs, strangers=True, apart=apart))
    return found
