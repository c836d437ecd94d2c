"""Which points `prepserver tune` measures, and which of them it recommends. Pure.

A point is a number of workers, a prefetch, a cache, and whether the dataset is packed. Measuring all combinations takes
long; the search climbs along the workers first, tries caches and packing where that curve bends, then prefetch, and
measures the best points again, because machines are noisy.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

ENOUGH = 0.97
"""Fraction of the best rate from which on a cheaper point is as good."""

FED = 0.95
"""Fraction of what the loop takes from which on it is fed; handing over a batch takes some time, too."""

_NEAR, _TWICE = 0.85, 3
"""So near to the best rate, a point may be the best one: so many are measured twice."""

_FALLEN = 2  # points below the best one, after which more workers are not tried


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration.

    Attributes:
        workers: Worker processes.
        prefetch: Rows to have ready ahead; 0 for the daemon's choice.
        cache: ``encoded``, ``decoded``, or empty for none.
        packed: Whether the dataset is packed.
    """

    workers: int
    prefetch: int = 0
    cache: str = ""
    packed: bool = False

    @property
    def form(self) -> tuple[str, bool]:
        """Cache and packing."""
        return self.cache, self.packed

    @property
    def cost(self) -> tuple[bool, int, int, int]:
        """What it asks of the user and the machine; the smaller, the better."""
        return self.packed, ("", "encoded", "decoded").index(self.cache), self.workers, self.prefetch

    def __str__(self) -> str:
        words = [f"{self.workers} worker{'s' if self.workers > 1 else ''}"]
        words += [f"prefetch {self.prefetch}"] if self.prefetch else []
        words += [f"{self.cache} cache"] if self.cache else []
        return ", ".join([*words, *(["packed"] if self.packed else [])])


Search = Generator[Point, float, None]
"""Yields points, and is sent the images/s of each; one that comes twice counts with its mean."""


def ladder(most: int) -> list[int]:
    """Numbers of workers to try: one more than the cores, too, for more can be slower."""
    steps = [n for power in range(most.bit_length()) for n in ((1 << power), 3 << power >> 1) if n < most]
    return sorted({*steps, most, most + 1})


def every(most: int, forms: Iterable[tuple[str, bool]], prefetches: Iterable[int]) -> Search:
    """All combinations."""
    for (cache, packed), workers, prefetch in itertools.product(forms, ladder(most), prefetches):
        yield Point(workers, prefetch, cache, packed)


def search(most: int, forms: Sequence[tuple[str, bool]], prefetches: Sequence[int], wanted_per_s: float) -> Search:
    """The points that lead to a good one.

    Args:
        most: Cores.
        forms: Cache and packing to try; the first is as the user has it.
        prefetches: Prefetch to try; the first is the default.
        wanted_per_s: Images/s that the loop takes; infinite if it is to be fed as fast as can be.
    """
    rates: dict[Point, float] = {}
    steps = ladder(most)
    fallen = 0
    for workers in steps:
        point = Point(workers, prefetches[0], *forms[0])
        rates[point] = yield point
        fallen = 0 if rates[point] >= max(rates.values()) else fallen + 1
        if fallen == _FALLEN or rates[point] >= FED * wanted_per_s:
            break
    knee = choose(rates, wanted_per_s)
    if rates[knee] < FED * wanted_per_s:
        for cache, packed in forms[1:]:
            point = replace(knee, cache=cache, packed=packed)
            rates[point] = yield point
        best = choose(rates, wanted_per_s)
        for step in (-1, 1) if best.form != knee.form else ():
            at = steps.index(best.workers) + step
            while 0 <= at < len(steps):
                point = replace(best, workers=steps[at])
                rates[point] = yield point
                if rates[point] < ENOUGH * max(rates.values()):
                    break
                at += step
    best = choose(rates, wanted_per_s)
    for prefetch in prefetches[1:]:
        point = replace(best, prefetch=prefetch)
        rates[point] = yield point
    near = sorted((point for point in rates if rates[point] >= _NEAR * max(rates.values())), key=lambda p: -rates[p])
    for point in near[:_TWICE] if len(near) > 1 else ():
        yield point


def choose(rates: Mapping[Point, float], wanted_per_s: float) -> Point:
    """The cheapest of the points that feed the loop, or are nearly as fast as the fastest one."""
    enough = min(ENOUGH * max(rates.values()), FED * wanted_per_s)
    return min((point for point, rate in rates.items() if rate >= enough), key=lambda point: point.cost)


def with_part(part: float, hit_per_s: float, miss_per_s: float) -> float:
    """Images/s if a cache has room for this part of the samples."""
    return 1.0 / (part / hit_per_s + (1.0 - part) / miss_per_s) if min(hit_per_s, miss_per_s) > 0 else 0.0
