"""The verdict on an epoch, against counting by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepserver.audit.proof import Account, Run, Tally
from prepserver.order import Order, Shuffle, make_order
from prepserver.pipeline.shard import Shard


def account(order: Order, start: int, taken: list[Run], **runs: Any) -> Account:
    tally = Tally(order.samples)
    tally.add(order, start, taken, **runs)
    return tally.account()


SHUFFLES: tuple[Shuffle, ...] = ("none", "full", "cyclic")


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[Shuffle, int, int, int, list[Run]]:
    n = draw(st.integers(1, 60))
    start = draw(st.integers(0, 3)) * n
    ends = st.integers(max(0, start - 5), start + n + 5)
    runs = draw(st.lists(st.tuples(ends, ends).map(lambda ab: (min(ab), max(ab))), max_size=6))
    return draw(st.sampled_from(SHUFFLES)), n, draw(st.integers(0, 5)), start, runs


@given(deliveries())
def test_any_ranges_get_the_verdict_of_counting_by_hand(
    given_: tuple[Shuffle, int, int, int, list[Run]],
) -> None:
    shuffle, n, seed, start, runs = given_
    order = make_order(shuffle, n, seed)
    counts = Counter(i for a, b in runs for p in range(a, b) for i in order.indices(p, 1))
    found = account(order, start, runs)
    assert found.once == sum(c == 1 for c in counts.values())
    assert found.missing == [i for i in range(n) if counts[i] == 0]
    assert found.repeated == [i for i in range(n) if counts[i] > 1]
    assert found.exact == (found.once == n)


@given(deliveries(), st.data())
def test_every_sample_is_in_exactly_one_part_of_the_account(
    given_: tuple[Shuffle, int, int, int, list[Run]], data: st.DataObject
) -> None:
    shuffle, n, seed, start, runs = given_
    order = make_order(shuffle, n, seed)
    inside = st.integers(start, start + n)
    parts = {
        name: data.draw(st.lists(st.tuples(inside, inside).map(lambda ab: (min(ab), max(ab))), max_size=2))
        for name in ("untaken", "left_out", "elsewhere")
    }
    at = data.draw(st.lists(st.integers(start, start + n - 1), max_size=4, unique=True))
    replaced = {p: (order.indices(p, 1)[0], "broken") for p in at}
    found = account(order, start, runs, replaced=replaced, **parts)
    parted = len(found.missing) + len(found.repeated) + len(found.replaced)
    assert found.once + parted + found.untaken + found.left_out + found.elsewhere == n
    assert all(index == order.indices(p, 1)[0] for index, p, _ in found.replaced)


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_an_epoch_cut_into_runs_of_several_ranks_is_exact(shuffle: Shuffle) -> None:
    order = make_order(shuffle, 20_000, 3)
    start = order.next_start(20_000 + 1)
    runs = [(p, min(p + 64, start + 20_000)) for p in range(start, start + 20_000, 64)]
    found = account(order, start, [*runs[::2], *runs[1::2]])
    assert (found.once, found.exact, found.whole) == (20_000, True, True)


def test_one_row_too_few_and_one_too_many_are_named() -> None:
    order = make_order("full", 1000, 9)
    found = account(order, 0, [(0, 500), (499, 998)], untaken=[(999, 1000)])
    assert found.repeated == order.indices(499, 1)
    assert found.missing == order.indices(998, 1)
    assert (found.untaken, found.exact, found.whole) == (1, False, False)


def test_a_replaced_sample_did_not_come_though_its_row_did() -> None:
    order = make_order("cyclic", 100, 1)
    index = order.indices(42, 1)[0]
    found = account(order, 0, [(0, 100)], replaced={42: (index, "a/b.jpg: cut off")})
    assert found.replaced == [(index, 42, "a/b.jpg: cut off")]
    assert (found.once, found.missing, found.exact) == (99, [], False)


def test_a_row_that_names_another_sample_replaces_nothing() -> None:
    order = make_order("cyclic", 100, 1)
    wrong = (order.indices(42, 1)[0] + 1) % 100
    assert account(order, 0, [(0, 100)], replaced={42: (wrong, "?")}).exact


@pytest.mark.parametrize("shuffle", SHUFFLES)
@given(n=st.integers(2, 60), shards=st.integers(2, 5), epoch=st.integers(0, 3), data=st.data())
def test_of_a_shard_its_own_samples_count_and_no_others(
    shuffle: Shuffle, n: int, shards: int, epoch: int, data: st.DataObject
) -> None:
    order = make_order(shuffle, n, 4, Shard(shards, data.draw(st.integers(0, shards - 1))))
    start = epoch * order.n
    own = {index for index in order.indices(start, order.n) if index >= 0}
    found = account(order, start, [(start, start + order.n)])
    assert (found.exact, found.samples, found.once) == (True, len(own), len(own))
    gone = data.draw(st.integers(start, start + order.n - 1))
    found = account(order, start, [(start, gone), (gone + 1, start + order.n)])
    assert found.missing == [index for index in order.indices(gone, 1) if index >= 0]
