"""Workers' time by stage, added up for streams and lanes."""

from __future__ import annotations

import time
from typing import Any

from prepserver.protocol.work import Filled
from prepserver.telemetry.stages import Stages

S = 10**9
WIDE: list[dict[str, Any]] = [
    {"op": "Decode"},
    {"op": "RandomResizedCrop"},
    {"op": "PluginOp", "name": "blur"},
    {"views": 2},
]
NARROW: list[dict[str, Any]] = [{"op": "Decode"}, {"op": "RandomResizedCrop"}]


def made(*ops_s: int, at_ns: int = 0) -> Filled:
    return Filled(1, [], 2 * S, 8 * S, 0, [], [s * S for s in ops_s], at_ns)


def test_each_lane_gets_the_times_of_its_own_ops() -> None:
    stages = Stages()
    for _ in range(2):
        stages.filled(5, 64, {7: WIDE, 8: NARROW}, made(0, 1, 2, 0, 3))
    counts = stages.counts([5], [7, 8])
    assert counts["stream rows", 5] == 128
    assert (counts["stream read", 5], counts["stream make", 5], counts["stream chunks", 5]) == (4.0, 16.0, 2.0)
    assert (counts["lane op RandomResizedCrop", 7], counts["lane op blur", 7]) == (2.0, 4.0)
    assert counts["lane op RandomResizedCrop", 8] == 6.0
    assert ("lane op Decode", 7) not in counts


def test_a_worker_that_says_less_is_counted_as_far_as_it_goes() -> None:
    stages = Stages()
    stages.filled(5, 64, {7: WIDE}, made())
    assert stages.counts([5], [7]) == {
        ("stream rows", 5): 64, ("stream chunks", 5): 1, ("stream read", 5): 2.0, ("stream make", 5): 8.0,
        ("stream announce", 5): 0.0,
    }  # fmt: skip


def test_the_way_from_the_worker_to_the_announcement_is_timed() -> None:
    stages = Stages()
    stages.filled(5, 64, {7: NARROW}, made(0, 1, at_ns=time.monotonic_ns() - S))
    assert stages.counts([5], [7])["stream announce", 5] >= 1.0


def test_streams_and_lanes_that_are_gone_are_forgotten() -> None:
    stages = Stages()
    stages.filled(5, 64, {7: NARROW}, made(0, 1))
    stages.filled(6, 64, {8: NARROW}, made(0, 1))
    assert {number for _, number in stages.counts([6], [8])} == {6, 8}
    assert {number for _, number in stages.counts([5, 6], [7, 8])} == {6, 8}
