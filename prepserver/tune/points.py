"""Which points `prepserver tune` measures, and which of them it recommends. Pure.

A point is a number of workers, a prefetch, a cache, and whether the dataset is packed. Measuring all combinations takes
long, so the search first adds workers while that helps. Then it measures rounds: the points that may be the best one,
and the neighbours of the fastest one so far: another cache, packing, some workers more or fewer, another prefetch.

Machines are noisy, and slower at one time than at another. Each round measures each of its points, so that slow times
can be told from slow points (`rates_of`). Other programs make a point slower and never faster, so a point counts with
the mean of the better half of its measurements.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TypeAlias

ENOUGH = 0.97  # a cheaper point with this fraction of the best rate is as good

FED = 0.95
"""A loop that gets this fraction of what it can take is fed, because handing over a batch takes time, too."""

_NEAR, _NEAREST = 0.85, 4
"""A point with this fraction of the best rate may be the best one; a round measures at most this many of them."""

_ROUNDS = 5
_TWICE = 2  # measurements of a neighbour and of the chosen point: a single one may have been disturbed
_AROUND, _FITS = 5, 4  # measurements on each side that give the machine's pace at a time; iterations of the fit

_FALLEN = 2  # after this many points in turn below the best one, no more workers are tried


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
        """What it costs the user and the machine; a smaller tuple is better."""
        return self.packed, ("", "encoded", "decoded").index(self.cache), self.workers, self.prefetch

    def __str__(self) -> str:
        words = [f"{self.workers} worker{'s' if self.workers > 1 else ''}"]
        words += [f"prefetch {self.prefetch}"] if self.prefetch else []
        words += [f"{self.cache} cache"] if self.cache else []
        return ", ".join([*words, *(["packed"] if self.packed else [])])


Measured: TypeAlias = Sequence[tuple[Point, float]]
"""Images/s, in the order of measurement; 0 for a point that cannot be measured."""


def ladder(most: int) -> list[int]:
    """Numbers of workers to try, up to one more than the cores, which may be slower."""
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
    """The points that lead to a good one, with `most` cores at most.

    The caller appends the result of each point to `measured` before it asks for the next one. `forms` are cache and
    packing to try, the user's present ones first, and `prefetches` those to try, the default first. `wanted_per_s` is
    the images/s that the loop can take; infinity for no limit.
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
        fastest = max(rates, key=lambda point: rates[point])  # not `best`, which may be cheaper and slightly slower
        new = [point for point in beside(fastest) if times[point] < _TWICE and rates.get(point) != 0]
        is_clear = len(near) == 1 or number >= _ROUNDS
        if not new and (not near or (is_clear and times[best] >= _TWICE)):
            return
        # Up and down in turn, so that a machine that slows down is equally unfair to all points.
        yield from sorted({*near, *new}, key=lambda point: point.cost, reverse=number % 2 == 1)


def rates_of(measured: Measured) -> dict[Point, float]:
    """The rate of each point in samples/s; 0 if it cannot be measured.

    The model: a measurement is the point's rate times the machine's pace at that time. The pace follows from the points
    that were measured several times: what they gave around that time, compared with what they give overall.
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
    # Paces are relative. They are scaled such that the most measured point keeps the rate that it had without them.
    usual = [_rates(done, [0.0] * len(done))[point] - rates[point] for point, _ in times.most_common(1)]
    return {point: math.exp(rates[point] + usual[0]) if point in rates else 0.0 for point, _ in measured}


def _rates(done: Measured, paces: Sequence[float]) -> dict[Point, float]:
    """Logarithms of the rates, given the logarithms of the machine's pace."""
    found: defaultdict[Point, list[float]] = defaultdict(list)
    for (point, rate), pace in zip(done, paces, strict=True):
        found[point].append(rate - pace)
    return {point: fmean(sorted(each)[len(each) // 2 :]) for point, each in found.items()}


def recommended(measured: Measured, wanted_per_s: float) -> Point:
    """The recommended point, if possible one that was measured more than once."""
    rates, times = rates_of(measured), Counter(point for point, _ in measured)
    least = min(_TWICE, max(times.values()))
    return cheapest({point: rate for point, rate in rates.items() if times[point] >= least}, wanted_per_s)


def cheapest(rates: Mapping[Point, float], wanted_per_s: float) -> Point:
    """The cheapest of the points that feed the loop, or are nearly as fast as the fastest one."""
    enough = min(ENOUGH * max(rates.values()), FED * wanted_per_s)
    return min((point for point, rate in rates.items() if rate >= enough), key=lambda point: point.cost)


def with_part(part: float, hit_per_s: float, miss_per_s: float) -> float:
    """Images/s if a cache has room for the fraction `part` of the samples."""
    return 1.0 / (part / hit_per_s + (1.0 - part) / miss_per_s) if min(hit_per_s, miss_per_s) > 0 else 0.0
