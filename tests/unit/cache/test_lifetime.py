"""How large caches may grow, and which ones end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prepserver.cache.lifetime import KEPT_S, Use, allowances, ended

GIB = 1 << 30

USES = st.lists(
    st.tuples(st.integers(0, GIB), st.one_of(st.none(), st.floats(0, 2 * KEPT_S))), min_size=1, max_size=5
).map(lambda found: [Use(number, *each) for number, each in enumerate(found)])


@given(USES, st.integers(0, 4 * GIB), st.integers(-GIB, 4 * GIB))
def test_allowances_keep_within_the_budget_and_take_nothing_away(uses: list[Use], budget: int, free: int) -> None:
    most = allowances(uses, budget, free)
    held = sum(use.nbytes for use in uses)
    assert all(most[use.id] >= use.nbytes for use in uses)
    assert sum(most.values()) <= max(held, budget)
    assert sum(most.values()) <= held + max(0, free)


def test_those_in_use_share_what_is_free() -> None:
    uses = [Use(1, GIB, None), Use(2, 0, None), Use(3, GIB, 5.0)]
    assert allowances(uses, 4 * GIB, 8 * GIB) == {1: 2 * GIB, 2: GIB, 3: GIB}


def test_an_idle_cache_ends_after_a_while() -> None:
    assert ended([Use(1, 0, KEPT_S - 1), Use(2, 0, None)], GIB, GIB) == []
    assert ended([Use(1, 0, KEPT_S + 1), Use(2, 0, None)], GIB, GIB) == [1]


def test_a_cache_in_use_never_ends() -> None:
    assert ended([Use(1, 2 * GIB, None)], GIB, -GIB) == []


def test_where_memory_is_short_the_one_idle_longest_ends() -> None:
    uses = [Use(1, GIB, 3.0), Use(2, GIB, 7.0), Use(3, GIB, None)]
    assert ended(uses, 8 * GIB, GIB) == []
    assert ended(uses, 3 * GIB, GIB) == [2]
    assert ended(uses, 8 * GIB, 0) == [2]


def test_a_full_budget_ends_nothing_that_nobody_waits_for() -> None:
    assert ended([Use(1, GIB, 3.0)], GIB, GIB) == []
