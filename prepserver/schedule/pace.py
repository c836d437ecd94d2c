"""Finds pipelines that make a shared stream slow for other users. Pure.

A chunk is filled in all lanes of its stream before any job gets it. So a pipeline that renders one sample a second
limits all other jobs of the stream to that rate. Among jobs of one user that is allowed: a sweep shares on purpose.
Between users the jobs of the slow lanes part for good, to a stream with a separate key.

CPU times of the same samples are compared, which a suspended worker or a busy machine does not change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from prepserver.schedule.lag import Apart, Parting
from prepserver.schedule.stream import Stream

FACTOR = 4.0
"""The lanes of a user may take this many times as long as reading, decoding and the lanes of the least demanding other
user. Beyond 1 that user would gain from half of the workers, but a parting is final and samples vary."""

EVIDENCE_S = 1.0
"""CPU time that must have gone into lanes before they part: mostly some dozens of samples."""

_APART = "/"  # other keys are hex digits

LEAST_SAMPLES = 4
"""A lane with fewer samples does not count yet, because a worker's first samples take longer."""


def apart_key(key: str, uid: int) -> str:
    """The key of streams for a user's slow pipelines that left streams of key `key`."""
    return f"{key}{_APART}{uid}"


def is_apart(key: str) -> bool:
    """Whether a stream of this key is for slow pipelines."""
    return _APART in key


@dataclass(frozen=True, slots=True)
class Load:
    """The cost of a lane.

    Attributes:
        lane: Number of the lane.
        uid: Its user.
        sample_ns: CPU time to render a sample.
    """

    lane: int
    uid: int
    sample_ns: float


def slow_lanes(loads: Iterable[Load], shared_ns: float) -> list[Load]:
    """The lanes that make a stream slow for other users; never all of them.

    A user keeps its lanes, the fastest first, while together they take at most `FACTOR` times as long as the stream
    would for the least demanding of the other users alone.

    Args:
        loads: Loads of all lanes.
        shared_ns: CPU time to read and decode a sample.
    """
    every = sorted(loads, key=lambda load: (load.sample_ns, load.lane))
    wanted: defaultdict[int, float] = defaultdict(float)
    for load in every:
        wanted[load.uid] += load.sample_ns
    if len(wanted) < 2:
        return []
    kept: defaultdict[int, float] = defaultdict(float)
    slow = []
    for load in every:
        least = min(ns for uid, ns in wanted.items() if uid != load.uid)
        if kept[load.uid] + load.sample_ns > FACTOR * (shared_ns + least):
            slow.append(load)
        else:
            kept[load.uid] += load.sample_ns
    return slow


def slow_partings(stream: Stream) -> list[Parting]:
    """Partings, one for each user, of jobs whose pipelines make a stream slow for other users."""
    shared_ns = stream.spent.sample_ns
    loads = [
        Load(lane.id, lane.key[1], lane.spent.sample_ns)
        for lane in stream.lanes.values()
        if lane.spent.samples >= LEAST_SAMPLES
    ]
    slow = slow_lanes(loads, shared_ns)
    rest_ns = shared_ns + sum(load.sample_ns for load in loads if load not in slow)
    found = []
    for uid in sorted({load.uid for load in slow}):
        lanes = {load.lane: load.sample_ns for load in slow if load.uid == uid}
        if sum(stream.lanes[lane].spent.ns for lane in lanes) >= EVIDENCE_S * 1e9:
            jobs = tuple(sorted({c.job for c in stream.cursors.values() if c.lane in lanes}))
            apart = Apart(uid, sum(lanes.values()), rest_ns)
            found.append(Parting(stream.id, jobs, strangers=True, apart=apart))
    return found
