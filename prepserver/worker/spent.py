"""Where the time of a chunk goes: reading, making rows, the CPU time of each lane, and each op."""

from __future__ import annotations

import time
from collections.abc import Sequence

from prepserver.transform import DECODING
from prepserver.worker.streams import Lane


class Spent:
    """The time that a chunk has taken so far."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.read_ns = 0  # for reading encoded bytes
        self.make_ns = 0  # for decoding and augmenting
        self._lanes = lanes
        self._cpu_ns = [0] * (len(lanes) + 1)  # by lane; the last place belongs to `DECODING`
        self._at, self._at_ns = DECODING, time.thread_time_ns()  # the current step and its start
        for lane in lanes:
            for maker in lane.makers:
                maker.ops_ns = [0] * len(maker.ops_ns)
            for maker, mixer in zip(lane.makers, lane.mixers, strict=False):
                mixer.parts.ops_ns = mixer.headed.ops_ns = mixer.tail.ops_ns = maker.ops_ns

    def begin(self, place: int) -> None:
        """Counts CPU time for the lane at `place`, or for all (`DECODING`), from now on; not needed with one lane."""
        if len(self._lanes) > 1:
            now_ns = time.thread_time_ns()  # some 0.5 us
            self._cpu_ns[self._at] += now_ns - self._at_ns
            self._at, self._at_ns = place, now_ns

    @property
    def lanes_ns(self) -> tuple[int, ...]:
        """CPU time of rendering for each lane; empty with one lane."""
        return tuple(self._cpu_ns[:-1]) if len(self._lanes) > 1 else ()

    @property
    def shared_ns(self) -> int:
        """CPU time for all lanes together; 0 with one lane."""
        return self._cpu_ns[DECODING]

    @property
    def ops_ns(self) -> tuple[tuple[int, ...], ...]:
        """For each lane, the time in each op of its pipeline, of all views together."""
        return tuple(
            tuple(map(sum, zip(*(maker.ops_ns for maker in lane.makers), strict=True))) for lane in self._lanes
        )
