"""The rings of one job by position: one as a rule, and several while the job moves to another ring.

A job moves when it joins another stream, or when jobs part: from some position on its rows are in a new ring. The old
ring is not refilled while the job still reads it. A batch may lie in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from prepclient.rows import MappedRing


@dataclass(slots=True)
class Link:
    """A ring, and the first position whose row lies in it."""

    start: int
    rows: MappedRing


class RingChain:
    """The rings of one job. The first one holds all positions until another is added."""

    def __init__(self, rows: MappedRing) -> None:
        self.links = [Link(0, rows)]

    def add(self, start: int, rows: MappedRing) -> None:
        """Adds a ring for the positions from `start` on, and drops rings that begin there or later."""
        while len(self.links) > 1 and self.links[-1].start >= start:
            self.links.pop().rows.close()
        self.links.append(Link(start, rows))

    def forget_below(self, position: int) -> None:
        """Drops rings whose rows are all below `position`."""
        while len(self.links) > 1 and self.links[1].start <= position:
            self.links.pop(0).rows.close()

    def close(self) -> None:
        """Ends all page-locks; no copy may read rows any more."""
        for link in self.links:
            link.rows.close()

    def parts(self, start: int, stop: int) -> list[list[torch.Tensor]]:
        """For each dense field views of the rows [start, stop): several if they wrap or lie in several rings."""
        runs = self._runs(start, stop)
        fields = range(len(self.links[0].rows.layout.dense))
        return [[part for rows, a, b in runs for part in rows.parts(a, b, field)] for field in fields]

    def scalars(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Copies of all scalar fields of the rows [start, stop), by name, each ``(stop - start,)``."""
        return self.scalars_later(start, stop)()

    def scalars_later(self, start: int, stop: int) -> Callable[[], dict[str, torch.Tensor]]:
        """As `scalars`, but prepares everything before the rows are ready; the returned function only copies."""
        runs = self._runs(start, stop)
        names = [field.name for field in self.links[0].rows.layout.scalars]
        parts = [[part for rows, a, b in runs for part in rows.scalars(name, a, b)] for name in names]
        copies = [np.empty(stop - start, each[0].dtype) for each in parts]
        scalars = dict(zip(names, map(torch.from_numpy, copies), strict=True))

        def read() -> dict[str, torch.Tensor]:
            for copy, each in zip(copies, parts, strict=True):
                np.concatenate(each, out=copy)
            return scalars

        return read

    def _runs(self, start: int, stop: int) -> list[tuple[MappedRing, int, int]]:
        """The rings that hold the rows [start, stop), each with its part; an empty batch has one part."""
        ends = [*(link.start for link in self.links[1:]), stop]
        runs = [(link.rows, max(start, link.start), min(stop, end)) for link, end in zip(self.links, ends, strict=True)]
        return [run for run in runs if run[1] < run[2]] or [(self.links[-1].rows, start, stop)]
