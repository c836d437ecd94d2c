"""Strikes and quarantine: samples on which workers die, and tasks that keep failing."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TypeVar

from prepserver.pipeline.sources import location_of
from prepserver.protocol.codec import MAX_MESSAGE_BYTES, encode
from prepserver.protocol.work import AddLane, AddStream
from prepserver.schedule.actions import Action, QuarantineSample
from prepserver.schedule.records import Chunk, Suspect
from prepserver.schedule.stream import Stream
from prepserver.schedule.table import Table
from prepserver.schedule.workers import Task

STRIKES_OUT = 6
"""A sample with this many strikes is not tried again. It loses its strikes when it is made after all."""

CRASH_STRIKES = 3  # strikes for a worker that crashed, exited or took too long: the second one is no coincidence

KILL_STRIKES = 2
"""Strikes for a worker that was killed from outside, for example because the kernel ran out of memory."""

FAILED_MOST = 3
"""After this many consecutive failed tasks the jobs of the lane, or of the stream, end with an error."""

QUARANTINES_MOST = 6
"""After this many samples were quarantined for a lane, with no chunk made in between, its jobs end with an error: all
of its samples are probably like that, and each one costs several workers."""

MOST_TOLD = 4096  # most quarantined samples in one message to a worker

_INDEX_BYTES = 9  # of one in a message, such as 2**48

M = TypeVar("M", AddStream, AddLane)

_WHY = {
    CRASH_STRIKES: "workers crashed on it, exited, or took longer than sample_timeout_s",
    KILL_STRIKES: "workers were killed during it, by the kernel for want of memory or by somebody",
}


class Strikes:
    """The strikes against samples, and the quarantined samples, of all sources."""

    def __init__(self, table: Table) -> None:
        self._table = table
        # samples that are not tried any more, by (source, pipeline); an empty pipeline stands for all
        self.quarantined: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self._strikes: defaultdict[tuple[str, str, int], int] = defaultdict(int)  # by source, pipeline, sample

    def set_known(self, source: str, samples: tuple[tuple[int, str], ...]) -> None:
        """Sets the quarantined samples of a source, unless a job reads it, whose rows must not change."""
        if any(stream.source == source for stream in self._table.streams.values()):
            return
        for key in [key for key in self.quarantined if key[0] == source]:
            del self.quarantined[key]
        for index, pipeline in samples:
            self.quarantined[source, pipeline].add(index)

    def told(self, message: M, source: str, pipeline: str = "") -> M:
        """A message with the quarantined samples of a source, or of a source in one pipeline, as far as they fit.

        Raises:
            ProtocolError: It is too large without them.
        """
        found = sorted(self.quarantined.get((source, pipeline), ()))
        room = (MAX_MESSAGE_BYTES - len(encode(replace(message, quarantined=[2**48])))) // _INDEX_BYTES
        return replace(message, quarantined=found[: min(MOST_TOLD, room)])

    def blame(self, task: Task | None, suspect: Suspect | None, strikes: int, *, stuck: bool) -> list[Action]:
        """Counts strikes against `suspect`, of a dead worker's oldest task, and may quarantine it."""
        stream = self._table.streams.get(task.stream) if task is not None else None
        if suspect is None or task is None or stream is None:
            return []
        if suspect.lane is not None and suspect.lane not in stream.lanes:
            return []  # nobody wants that row any more
        if suspect.index is None:
            stream.suspects.setdefault(task.chunk.position, set())  # next time its rows are made one by one
            return []
        pipeline = "" if suspect.lane is None else stream.lanes[suspect.lane].key[0]
        source, index = stream.source, suspect.index
        if any(index in self.quarantined.get((source, each), ()) for each in ("", pipeline)):
            return []  # workers no longer try it, so something else killed this one
        self._strikes[source, pipeline, index] += strikes
        stream.suspects.setdefault(task.chunk.position, set()).add((pipeline, index))
        if self._strikes[source, pipeline, index] < STRIKES_OUT:
            return []
        del self._strikes[source, pipeline, index]
        self.quarantined[source, pipeline].add(index)
        if suspect.lane is not None:
            stream.quarantines[suspect.lane] += 1
        why = "a worker hung on it for good" if stuck else _WHY.get(strikes, "")
        return [self._quarantine(source, index, pipeline, why)]

    def acquit(self, stream: Stream, chunk: Chunk) -> None:
        """Clears the strikes of all samples in a chunk that was made after all."""
        if stream.suspects:
            for pipeline, index in stream.suspects.pop(chunk.position, ()):
                self._strikes.pop((stream.source, pipeline, index), None)

    def failed(self, stream: Stream, lane: int | None) -> bool:
        """Counts a failed task that is the fault of `lane`, or of none; returns whether the limit is reached."""
        stream.failed[lane] += 1
        return stream.failed[lane] >= FAILED_MOST

    def _quarantine(self, source: str, index: int, pipeline: str, why: str) -> QuarantineSample:
        streams = [stream for stream in self._table.streams.values() if stream.source == source]
        lanes = [(s.id, lane) for s in streams for lane in s.lanes.values() if lane.key[0] == pipeline]
        places = tuple((s, lane.id) for s, lane in lanes) if pipeline else tuple((s.id, None) for s in streams)
        ops = ", ".join(op.get("name", op["op"]) for op in lanes[0][1].pipeline) if lanes else ""
        return QuarantineSample(source, index, pipeline, places, why, ops, location_of(streams[0].spec.source))
