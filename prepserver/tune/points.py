"""Which points `prepserver tune` measures, and which of them it recommends. Pure.

A point is a number of workers, a prefetch, a cache, and whether the dataset is packed. Measuring all combinations takes
long; the search climbs along the workers first. Then it goes in rounds over the points that may be the best one, and
over those beside the fastest one so far: another cache, packing, some workers more or fewer, another prefetch.

Machines are noisy, and slower at one time than at another. In a round, each point has its turn, so points can be told
from times (`rates_of`). Others' work makes a point slower and never faster, so a point counts with the mean of the
better half of what was measured.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TypeAlias

ENOUGH = 0.97
"""Fraction of the best rate from which on a cheaper point is as good."""

FED = 0.95
"""Fraction of what the loop takes from which on it is fed; handing over a batch takes some time, too."""

_NEAR, _NEAREST = 0.85, 4
"""So near to the best rate, a point may be the best one; of so many, a round measures each."""

_ROUNDS = 5
_TWICE = 2  # of a point beside the best one, and of one that is chosen: a single measurement may have been disturbed
_AROUND, _FITS = 5, 4  # measurements before and after one that say how fast the machine was then; how often to refine

_FALLEN = 2  # points below the best one, after which more workers are not tried


@dataclass(frozen=True, slots=True)
class Point:
    """One configuration."""

    workers: int  # worker processes
    prefetch: int = 0  # rows to have ready ahead; 0 for the daemon's choice
    cache: str = ""  # ``encoded``, ``decoded``, or empty for none
    packed: bool = False  # whether the dataset is packed

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


Measured: TypeAlias = Sequence[tuple[Point, float]]
"""Images/s, in the order in which they were measured; 0 of a point that cannot be."""


def ladder(most: int) -> list[int]:
    """Numbers of workers to try: one more than the cores, too, for more can be slower."""
    steps = [n for power in range(most.bit_length()) for n in ((1 << power), 3 << power >> 1) if n < most]
    return sorted({*steps, most, most + 1})


def every(
    measured: Measured, most: int, forms: Iterable[tuple[str, bool]], prefetches: Iterable[int], wanted_per_s: float
) -> Iterator[Point]:
    """All combinations, up and down, then rounds of those that may be the best; the arguments are those of `search`."""
    found = itertools.product(forms, ladder(most), prefetches)
    points = [Point(workers, prefetch, cache, packed) for (cache, packed), workers, prefetch in found]
    yield from points
    rates = rates_of(measured)
    yield from (point for point in reversed(points) if rates[point])
    yield from _rounds(measured, wanted_per_s, lambda _: ())


def search(
    measured: Measured, most: int, forms: Sequence[tuple[str, bool]], prefetches: Sequence[int], wanted_per_s: float
) -> Iterator[Point]:
    """The points that lead to a good one.

    Args:
        measured: Whoever measures adds what a point gave before the next one is asked for.
        most: Cores.
        forms: Cache and packing to try; the first is as the user has it.
        prefetches: Prefetch to try; the first is the default.
        wanted_per_s: Images/s that the loop takes; infinite if it is to be fed as fast as can be.
    """
    steps = ladder(most)
    fallen = 0
    for workers in steps:
        yield (point := Point(workers, prefetches[0], *forms[0]))
        rates = rates_of(measured)
        fallen = 0 if rates[point] >= max(rates.values()) else fallen + 1
        if fallen == _FALLEN or rates[point] >= FED * wanted_per_s:
            break

    def beside(fastest: Point) -> Iterator[Point]:
        if rates_of(measured)[fastest] >= FED * wanted_per_s:
            return  # the loop takes no more
        yield from (replace(fastest, cache=cache, packed=packed) for cache, packed in forms)
        at = steps.index(fastest.workers)
        yield from (replace(fastest, workers=workers) for workers in steps[max(0, at - 1) : at + 2])
        yield from (replace(fastest, prefetch=prefetch) for prefetch in prefetches)

    yield from _rounds(measured, wanted_per_s, beside)


def _rounds(measured: Measured, wanted_per_s: float, beside: Callable[[Point], Iterable[Point]]) -> Iterator[Point]:
    for number in itertools.count():
        rates, times = rates_of(measured), Counter(point for point, _ in measured)
        best = cheapest(rates, wanted_per_s)
        near = [point for point, rate in rates.items() if 0 < _NEAR * max(rates.values()) <= rate]
        near = sorted(near, key=lambda point: (point != best, -rates[point]))[: _NEAREST if number < _ROUNDS else 1]
        fastest = max(rates, key=lambda point: rates[point])  # not the best one, which may be a little slower already
        new = [point for point in beside(fastest) if times[point] < _TWICE and rates.get(point) != 0]
        is_clear = len(near) == 1 or number >= _ROUNDS
        if not new and (not near or (is_clear and times[best] >= _TWICE)):
            return
        # Up and down in turn: a machine that gets slower all the time is as unfair to one point as to another.
        yield from sorted({*near, *new}, key=lambda point: point.cost, reverse=number % 2 == 1)


def rates_of(measured: Measured) -> dict[Point, float]:
    """The images/s that each point counts with; 0 if it cannot be measured.

    What was measured is taken as the point's rate times the pace of the machine at that time. The pace is what points
    that were measured several times gave around that time, beside what they give in all.
    """
    done = [(point, math.log(rate)) for point, rate in measured if rate]
    times = Counter(point for point, _ in done)
    paces = [0.0] * len(done)
    for _ in range(_FITS):
        rates = _rates(done, paces)
        off = [rate - rates[point] if times[point] > 1 else None for point, rate in done]
        around = (off[max(0, at - _AROUND) : at + _AROUND + 1] for at in range(len(off)))
        paces = [median([each for each in some if each is not None] or [0.0]) for some in around]
    rates = _rates(done, paces)
    # Paces are relative: the usual one is such that the point that was measured most often has a rate that it gave.
    usual = [_rates(done, [0.0] * len(done))[point] - rates[point] for point, _ in times.most_common(1)]
    return {point: math.exp(rates[point] + usual[0]) if point in rates else 0.0 for point, _ in measured}


def _rates(done: Measured, paces: Sequence[float]) -> dict[Point, float]:
    """The logarithms of the rates, by those of the machine's pace."""
    found: defaultdict[Point, list[float]] = defaultdict(list)
    for (point, rate), pace in zip(done, paces, strict=True):
        found[point].append(rate - pace)
    return {point: fmean(sorted(each)[len(each) // 2 :]) for point, each in found.items()}


def recommended(measured: Measured, wanted_per_s: float) -> Point:
    """The recommended point, one of those that were measured more than once, if there are such."""
    rates, times = rates_of(measured), Counter(point for point, _ in measured)
    least = min(_TWICE, max(times.values()))
    return cheapest({point: rate for point, rate in rates.items() if times[point] >= least}, wanted_per_s)


def cheapest(rates: Mapping[Point, float], wanted_per_s: float) -> Point:
    """The cheapest of the points that feed the loop, or are nearly as fast as the fastest one."""
    enough = min(ENOUGH * max(rates.values()), FED * wanted_per_s)
    return min((point for point, rate in rates.items() if rate >= enough), key=lambda point: point.cost)


def with_part(part: float, hit_per_s: float, miss_per_s: float) -> float:
    """Images/s if a cache has room for this part of the samples."""
    return 1.0 / (part / hit_per_s + (1.0 - part) / miss_per_s) if min(hit_per_s, miss_per_s) > 0 else 0.0
