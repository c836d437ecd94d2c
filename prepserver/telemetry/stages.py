"""Workers' time by stage: reading, decoding and announcing for each stream, and each op of each lane.

Workers report it with every chunk; the daemon adds it up, so a worker that dies takes one chunk's figures with it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from prepserver.protocol.work import Filled
from prepserver.telemetry.rates import Key


class Stages:
    """Sums since the daemon started, for the streams and lanes that exist."""

    def __init__(self) -> None:
        self._streams: dict[int, dict[str, float]] = {}
        self._lanes: dict[int, dict[str, float]] = {}

    def filled(self, stream: int, rows: int, lanes: Mapping[int, Sequence[Mapping[str, Any]]], made: Filled) -> None:
        """Counts one chunk of a stream; call it when its rows have been announced.

        `rows` are the positions that it covers, `lanes` its lanes in order with the wire forms of their pipelines.
        """
        sums = self._streams.setdefault(stream, dict.fromkeys(("rows", "chunks", "read", "make", "announce"), 0.0))
        sums["rows"] += rows
        sums["chunks"] += 1
        sums["read"] += made.read_ns / 1e9
        sums["make"] += made.make_ns / 1e9
        sums["announce"] += max(0, time.monotonic_ns() - made.at_ns) / 1e9 if made.at_ns else 0.0
        left = list(made.ops_ns)
        for lane, pipeline in lanes.items():
            ops = [each for each in pipeline if "op" in each]  # the number of views comes last
            mine, left = left[: len(ops)], left[len(ops) :]
            found = self._lanes.setdefault(lane, {})
            for place, (op, ns) in enumerate(zip(ops, mine, strict=False)):
                if place > 0:  # op 0 is `Decode`, which gets what the others leave of `make`
                    name = f"op {op.get('name') or op['op']}"  # a plug-in's name, or the op's class
                    found[name] = found.get(name, 0.0) + ns / 1e9

    def counts(self, streams: Collection[int], lanes: Collection[int]) -> dict[Key, float]:
        """All sums, for `Rates`; forgets streams and lanes that are not named."""
        self._streams = {number: sums for number, sums in self._streams.items() if number in streams}
        self._lanes = {number: sums for number, sums in self._lanes.items() if number in lanes}
        return {
            (f"{kind} {name}", number): value
            for kind, all_sums in (("stream", self._streams), ("lane", self._lanes))
            for number, sums in all_sums.items()
            for name, value in sums.items()
        }
