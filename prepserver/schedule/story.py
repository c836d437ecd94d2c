"""A log of recent events. Errors quote what happened to a stream before its jobs ended."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from prepserver.schedule.actions import GoesAlone, Joined, QuarantineSample
from prepserver.schedule.events import ChunkFailed, Event, RankAttaches, RankLeft, WorkerLost
from prepserver.schedule.lag import Parting

_KEPT = 300
_TOLD = 6
_NUMBER = re.compile(r"\d+")

Noted = Event | GoesAlone | Joined | QuarantineSample | Parting


class Story:
    """A bounded log of all but progress (chunks made, rows released); `now_s` is the time of the current event."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._noted: deque[tuple[float, Noted, tuple[int, ...]]] = deque(maxlen=_KEPT)

    def note(self, what: Noted, *streams: int) -> None:
        """Logs what happened to these streams, or to no particular one."""
        self._noted.append((self.now_s, what, streams))

    def __iter__(self) -> Iterator[tuple[float, Noted, tuple[int, ...]]]:
        return iter(self._noted)

    def of(self, stream: int, error: str = "") -> str:
        """The last events of a stream as a sentence, without tasks that failed by `error`; empty if there are none."""
        found = [(at_s, what) for at_s, what, streams in self._noted if stream in streams]
        told = [
            f"{self.now_s - at_s:.1f} s ago {_words(what)}"
            for at_s, what in found
            if not (isinstance(what, ChunkFailed) and _gist(what.reason) == _gist(error))
        ]
        return f" (before that: {'; '.join(told[-_TOLD:])})" if told else ""


def _gist(reason: str) -> str:
    """What the reasons of tasks that fail alike have in common: all but the sample, which comes first, and numbers."""
    return _NUMBER.sub("", reason.partition(": ")[2] or reason)


def _words(what: Noted) -> str:
    match what:
        case RankAttaches(asked=asked):
            return f"rank {asked.attach.rank} of job {asked.attach.job!r} attached"
        case RankLeft():
            return "a rank left"
        case WorkerLost(worker, suspect, _, stuck):
            which = "" if suspect is None else "several samples" if suspect.index is None else f"sample {suspect.index}"
            at = which and f" at {which}"
            return f"worker {worker} {'hung' if stuck else 'was lost'}{at}"
        case ChunkFailed(worker, task, reason):
            return f"task {task} of worker {worker} failed: {reason[:200]}"
        case Joined(stream, into):
            return f"the jobs of stream {stream} joined stream {into}"
        case GoesAlone(stream, why):
            return f"stream {stream} went on alone, because {why}"

        case QuarantineSample(index=index):
            return f"sample {index} was quarantined"
        case Parting(jobs=jobs):
            return f"{len(jobs)} jobs parted, because they held others back"
        case _:
            return type(what).__name__
