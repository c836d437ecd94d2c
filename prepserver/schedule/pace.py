"""Pipelines of different pace: which of them make a shared stream slow for other users. Pure.

A chunk is filled in all lanes of its stream before any job has it. So a pipeline that takes a second to render a
sample gives every other job of the stream one sample a second. Within one user's jobs that is the user's affair: a
sweep shares on purpose, and its slowest pipeline sets the pace. Between users it is not: the jobs of the lanes that
are to blame go on in a stream under a key of its own. So they do not come back, neither when they meet nor after an
early start.

What is compared is the CPU time of the same samples: a suspended worker or a busy machine does not stretch it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from prepserver.schedule.lag import Apart, Parting
from prepserver.schedule.stream import Stream

FACTOR = 4.0
"""How many times as long as all that the least demanding other user shares a stream for (reading, decoding, its own
lanes) the lanes of a user may take. Beyond once, that other one would have more of half the workers; but a stream that
is parted stays so, and samples vary."""

EVIDENCE_S = 1.0
"""So much CPU time must have gone into the lanes that are to part: some dozens of samples mostly. With fewer than some
milliseconds a sample it takes thousands, and nobody is in a hurry."""

_APART = "/"  # in no key of another stream: those are hex digits

LEAST_SAMPLES = 4
"""A lane with fewer samples does not count yet: a worker's first ones take longer."""


def apart_key(key: str, uid: int) -> str:
    """The key of the streams for this user's slow pipelines, by that of the streams that they left."""
    return f"{key}{_APART}{uid}"


def is_apart(key: str) -> bool:
    """Whether a stream is one for slow pipelines."""
    return _APART in key


@dataclass(frozen=True, slots=True)
class Load:
    """What a lane takes.

    Attributes:
        lane: Which.
        uid: Whose.
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
        loads: Of all lanes.
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
    """The jobs that are to leave a stream because their pipelines make it slow for other users; one for each user."""
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
