"""Which points are measured, and which is chosen: planted curves, against the best of all combinations."""

from __future__ import annotations

import math
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prepserver.tune.points import FED, Point, Search, choose, every, ladder, search, with_part

FORMS = [("", False), ("encoded", False), ("decoded", False), ("", True)]
PREFETCHES = [0, 128]


def walked(steps: Search, rate: Callable[[Point], float]) -> dict[Point, float]:
    """All points that a search asks for, with their rates."""
    rates: dict[Point, float] = {}
    try:
        point = next(steps)
        while True:
            rates[point] = rate(point)
            point = steps.send(rates[point])
    except StopIteration:
        return rates


@given(
    st.integers(1, 64), st.floats(0.5, 70), st.floats(0, 0.2), st.lists(st.floats(0.5, 4), min_size=4, max_size=4),
    st.floats(0.7, 1.3), st.floats(100, 1e5) | st.just(math.inf),
)  # fmt: skip
def test_the_choice_is_near_the_best_of_all_combinations(
    most: int, knee: float, loss: float, gains: list[float], prefetch: float, wanted: float
) -> None:
    """More workers help as far as a knee, and may be slower beyond it; each form has its factor."""

    def rate(point: Point) -> float:
        beyond = max(0.0, point.workers - knee)
        found: float = 300 * min(point.workers, knee) * (1 - loss) ** beyond * gains[FORMS.index(point.form)]
        return min(wanted, found * (prefetch if point.prefetch else 1.0))

    rates = walked(search(most, FORMS, PREFETCHES, wanted), rate)
    best = max(walked(every(most, FORMS, PREFETCHES), rate).values())
    assert rates[choose(rates, wanted)] >= FED * best
    assert len(rates) <= 2 * len(ladder(most)) + 4


def test_no_more_is_tried_once_the_loop_is_fed() -> None:
    rates = walked(search(16, FORMS, PREFETCHES, 500.0), lambda point: min(500.0, 200.0 * point.workers))
    assert {point.form for point in rates} == {("", False)}
    assert [point.workers for point in rates] == [1, 2, 3, 3]
    assert choose(rates, 500.0) == Point(3)


def test_the_nearest_points_are_measured_twice() -> None:
    asked: list[Point] = []

    def rate(point: Point) -> float:
        asked.append(point)
        return {1: 60.0, 2: 100.0, 3: 98.0}[point.workers]

    walked(search(2, FORMS[:1], [0], math.inf), rate)
    assert [point.workers for point in asked] == [1, 2, 3, 2, 3]


def test_another_form_may_need_fewer_workers() -> None:
    def rate(point: Point) -> float:
        return 1200.0 - 100 * point.workers if point.cache == "decoded" else 100.0 * point.workers

    rates = walked(search(4, FORMS, [0], math.inf), rate)
    assert choose(rates, math.inf) == Point(1, cache="decoded")


def test_more_workers_can_be_slower() -> None:
    rates = walked(search(16, FORMS[:1], [0], math.inf), lambda point: 100.0 * min(point.workers, 8 - point.workers))
    assert [point.workers for point in rates] == [1, 2, 3, 4, 6, 8]
    assert choose(rates, math.inf) == Point(4)


def test_of_two_that_are_as_fast_the_cheaper_is_chosen() -> None:
    plain, cached, packed = Point(4), Point(2, cache="encoded"), Point(1, packed=True)
    assert choose({packed: 100.0, cached: 99.0, plain: 98.0}, math.inf) == plain
    assert choose({packed: 100.0, cached: 90.0, plain: 80.0}, math.inf) == packed
    assert choose({packed: 100.0, cached: 90.0, plain: 80.0}, 84.0) == plain
    assert str(Point(1, 64, "decoded", True)) == "1 worker, prefetch 64, decoded cache, packed"


@pytest.mark.parametrize(("most", "steps"), [(1, [1, 2]), (2, [1, 2, 3]), (8, [1, 2, 3, 4, 6, 8, 9])])
def test_the_ladder_ends_one_above_the_cores(most: int, steps: list[int]) -> None:
    assert ladder(most) == steps


def test_a_cache_of_half_the_samples_saves_half_of_the_time() -> None:
    assert with_part(0.5, 400.0, 100.0) == pytest.approx(160.0)
    assert with_part(1.0, 400.0, 100.0) == pytest.approx(400.0)
    assert with_part(0.5, 0.0, 100.0) == 0.0
