"""Shards stand at one number, which the line of all samples can be told from, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepserver.pipeline.shard import WHOLE, Shard

COUNTS = st.integers(1, 7)


@given(st.integers(1, 200), COUNTS)
def test_every_place_of_a_pass_is_in_one_shard(n: int, count: int) -> None:
    shards = [Shard(count, index) for index in range(count)]
    assert len({s.positions(n) for s in shards}) == 1
    assert sum(s.positions(n) - s.is_short(n) for s in shards) == n
    assert {s.is_uneven(n) for s in shards} == {any(s.is_short(n) for s in shards)}


@given(st.integers(1, 200), COUNTS, st.integers(0, 5), st.data())
def test_where_shards_stand_can_be_told_in_all_samples_and_back(
    n: int, count: int, epoch: int, data: st.DataObject
) -> None:
    shard = Shard(count, data.draw(st.integers(0, count - 1)))
    m = shard.positions(n)
    position = data.draw(st.integers(epoch * m, epoch * m + m - 1))
    of_all = shard.to_all(position, n)
    assert shard.to_all(epoch * m, n) == epoch * n
    assert shard.from_all(epoch, epoch * n, of_all, n) == (epoch * m, position)


@given(st.integers(1, 200), COUNTS, COUNTS, st.integers(0, 5), st.data())
def test_other_shards_go_on_only_where_they_divide_what_is_taken(
    n: int, count: int, other: int, epoch: int, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, Shard(count).positions(n) - 1))
    taken = place * count
    if taken % other:
        with pytest.raises(ValueError, match=f"{taken} samples of the epoch were taken"):
            Shard(other).from_all(epoch, epoch * n, epoch * n + taken, n)
    else:
        _, own = Shard(other).from_all(epoch, epoch * n, epoch * n + taken, n)
        assert Shard(other).to_all(own, n) == epoch * n + taken


def test_any_number_of_shards_may_begin_an_epoch_at_its_start() -> None:
    """It does not matter where the epoch began."""
    assert Shard(3).from_all(5, 1234, 1234, 100) == (5 * 34, 5 * 34)
    assert WHOLE.from_all(5, 1234, 1240, 100) == (1234, 1240)


@given(st.integers(1, 200), COUNTS, st.integers(0, 5), st.integers(0, 5))
def test_a_shard_back_at_the_start_of_an_epoch_stays_in_its_pass(n: int, count: int, epoch: int, pass_: int) -> None:
    """Of a job that joined late, epoch e may be pass e + 3: the shards that did not leave are there too."""
    shard = Shard(count)
    own = pass_ * shard.positions(n)
    of_all = shard.to_all(own, n)
    assert shard.from_all(epoch, of_all, of_all, n) == (own, own)


def test_an_epoch_that_began_inside_a_pass_refuses_shards() -> None:
    with pytest.raises(ValueError, match="began 34 samples after a pass"):
        Shard(2).from_all(5, 1234, 1240, 100)


@pytest.mark.parametrize(("count", "index", "name"), [(0, 0, "num_shards"), (2, 2, "shard_index"), (2, -1, "shard_i")])
def test_a_shard_that_cannot_be_is_refused(count: int, index: int, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Shard(count, index)
