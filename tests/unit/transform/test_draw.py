"""Counter-based randomness: what the numbers depend on, and their bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepserver.pipeline.random_words import SampleKey
from prepserver.transform.stage import Draws

keys = st.builds(SampleKey, st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 2**40))


@given(keys, st.integers(0, 63), st.integers(1, 2**28))
def test_numbers_stay_within_their_bounds(key: SampleKey, place: int, count: int) -> None:
    draws = Draws(key, place)
    for _ in range(20):
        assert 0.0 <= draws.uniform() < 1.0
        assert 0 <= draws.below(count) < count
        assert 2.0 <= draws.uniform(2.0, 3.0) <= 3.0


@given(keys, st.integers(0, 63))
def test_the_same_key_and_place_give_the_same_line_of_numbers(key: SampleKey, place: int) -> None:
    one, other = Draws(key, place), Draws(key, place)
    assert [one.word() for _ in range(20)] == [other.word() for _ in range(20)]


def test_each_part_of_the_key_changes_the_numbers() -> None:
    variants = [
        (SampleKey(1, 2, 3), 4),
        (SampleKey(0, 2, 3), 4),
        (SampleKey(1, 0, 3), 4),
        (SampleKey(1, 2, 0), 4),
        (SampleKey(1, 2, 3), 0),
    ]
    words = {Draws(key, place).word() for key, place in variants}
    words |= {Draws(SampleKey(1, 2, 3), place, view).word() for place in (3, 4, 5) for view in range(1, 16)}
    assert len(words) == len(variants) + 45


@given(keys, st.integers(0, 63), st.integers(1, 15))
def test_each_view_has_its_own_numbers_and_the_first_a_sole_ones(key: SampleKey, place: int, view: int) -> None:
    only, first, other = Draws(key, place), Draws(key, place, 0), Draws(key, place, view)
    assert [first.word() for _ in range(20)] == (words := [only.word() for _ in range(20)])
    assert not {other.word() for _ in range(20)} & set(words)


def test_a_line_does_not_repeat_itself_from_block_to_block() -> None:
    draws = Draws(SampleKey(0, 0, 0), 1)
    assert len({draws.word() for _ in range(64)}) == 64


def test_the_numbers_are_these_for_ever() -> None:
    draws = Draws(SampleKey(seed=1, pass_=2, index=3), 4)
    assert [draws.word() for _ in range(2)] == [4625569609578911571, 5941978638418944684]


def test_a_choice_of_one_is_that_one() -> None:
    draws = Draws(SampleKey(0, 0, 0), 1)
    assert {draws.below(1) for _ in range(50)} == {0}


def test_numbers_spread_over_their_range() -> None:
    drawn = [Draws(SampleKey(0, 0, index), 1).uniform() for index in range(2000)]
    assert sum(drawn) / len(drawn) == pytest.approx(0.5, abs=0.03)
    assert min(drawn) < 0.01
    assert max(drawn) > 0.99
