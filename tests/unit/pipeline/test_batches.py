"""How an epoch is cut: every row once, every rank alike, also after a resume with other sizes."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given, settings

from prepserver.pipeline.batches import Batch, Batching, BatchLine, BatchShape, EpochPlan, batch_rows
from prepserver.pipeline.shard import Shard

SIZES = st.integers(1, 9)
WORLDS = st.integers(1, 6)


def dealt(start: int, stop: int, batch_size: int, drop_last: bool, world: int) -> list[list[Batch]]:
    """The batches of each rank."""
    plans = [EpochPlan(start, stop, batch_size, drop_last, rank, world) for rank in range(world)]
    return [[plan.batch(i) for i in range(len(plan))] for plan in plans]


def rows_of(ranks: list[list[Batch]]) -> list[int]:
    """All rows of all ranks, in stream order."""
    return sorted(p for batches in ranks for b in batches for p in range(b.start, b.stop))


@given(st.integers(0, 200), st.integers(0, 120), SIZES, WORLDS, st.booleans())
@settings(deadline=None, max_examples=400)
def test_every_rank_gets_as_many_batches_and_each_row_goes_once(
    start: int, n: int, batch_size: int, world: int, drop_last: bool
) -> None:
    ranks = dealt(start, start + n, batch_size, drop_last, world)
    assert len({len(batches) for batches in ranks}) == 1
    whole = n // (batch_size * world) * batch_size * world
    assert rows_of(ranks) == list(range(start, start + (whole if drop_last else n)))
    for batches in ranks:
        assert all(0 <= b.stop - b.start <= batch_size for b in batches)
        assert all(a.stop <= b.start for a, b in itertools.pairwise(batches))
        if drop_last:
            assert all(b.stop - b.start == batch_size for b in batches)


@given(st.integers(1, 120), st.integers(2, 9), WORLDS)
@settings(deadline=None, max_examples=300)
def test_no_batch_is_empty_where_there_is_a_row_for_each_rank(n: int, batch_size: int, world: int) -> None:
    assume(n >= world)
    ranks = dealt(0, n, batch_size, False, world)
    assert all(b.stop > b.start for batches in ranks for b in batches)


@given(st.integers(1, 120), SIZES, WORLDS, st.booleans())
@settings(deadline=None, max_examples=300)
def test_only_the_last_two_rounds_are_split_and_evenly(n: int, batch_size: int, world: int, drop_last: bool) -> None:
    ranks = dealt(0, n, batch_size, drop_last, world)
    rounds = list(zip(*ranks, strict=True))
    assert all(b.stop - b.start == batch_size for batches in rounds[:-2] for b in batches)
    for batches in rounds[-2:]:
        sizes = {b.stop - b.start for b in batches}
        assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 120), SIZES, WORLDS, st.booleans(), SIZES, WORLDS, st.data())
@settings(deadline=None, max_examples=400)
def test_the_rest_of_an_epoch_is_dealt_exactly_to_new_sizes(
    n: int, batch_size: int, world: int, drop_last: bool, new_size: int, new_world: int, data: st.DataObject
) -> None:
    """The sizes before that may be any."""
    plan = EpochPlan(0, n, batch_size, drop_last, 0, world)
    had = data.draw(st.integers(0, len(plan)))
    ranks = dealt(0, n, batch_size, drop_last, world)
    at = plan.resume_position(had)
    assert rows_of([batches[:had] for batches in ranks]) == list(range(at))
    assert rows_of(dealt(at, n, new_size, False, new_world)) == list(range(at, n))


def test_all_ranks_agree_on_where_they_stand() -> None:
    plans = [EpochPlan(7, 60, 5, rank=rank, world_size=3) for rank in range(3)]
    for done in range(len(plans[0]) + 1):
        assert len({plan.resume_position(done) for plan in plans}) == 1
    assert plans[0].resume_position(len(plans[0])) == 60


def test_a_plain_epoch_is_a_dataloaders() -> None:
    plan = EpochPlan(0, 10, 4)
    assert [plan.batch(i) for i in range(len(plan))] == [Batch(0, 4), Batch(4, 8), Batch(8, 10)]
    assert len(EpochPlan(0, 10, 4, drop_last=True)) == 2


@pytest.mark.parametrize("number", [-1, 3])
def test_a_batch_that_the_epoch_has_not_is_an_index_error(number: int) -> None:
    with pytest.raises(IndexError, match="epoch with 3"):
        EpochPlan(0, 10, 4).batch(number)


def line(n: int, at: int, size: int, drop_last: bool, world: int, rank: int = 0, start: int = 0) -> BatchLine:
    return BatchLine(n, BatchShape(size, drop_last, rank, world), start, at)


@given(st.integers(1, 60), SIZES, WORLDS, st.booleans(), st.integers(0, 3), st.data())
@settings(deadline=None, max_examples=300)
def test_a_line_goes_over_the_ends_of_epochs_for_ever(
    n: int, size: int, world: int, drop_last: bool, epochs: int, data: st.DataObject
) -> None:
    assume(n >= world * (size if drop_last else 1))
    start = epochs * n
    lines = [line(n, start, size, drop_last, world, rank, start) for rank in range(world)]
    per_epoch = len(lines[0].full_epoch)
    for epoch in range(start, start + 3 * n, n):
        got = []
        for one in lines:
            assert one.epoch_start == one.position == epoch
            batches = []
            for _ in range(per_epoch):
                batches.append(one.peek())
                one.advance()
            got.append(batches)
        assert got == dealt(epoch, epoch + n, size, drop_last, world)


@given(st.integers(1, 60), SIZES, WORLDS, st.booleans(), SIZES, WORLDS, st.integers(0, 40))
@settings(deadline=None, max_examples=300)
def test_a_line_resumed_at_its_position_goes_on_at_the_next_row(
    n: int, size: int, world: int, drop_last: bool, new_size: int, new_world: int, steps: int
) -> None:
    assume(n >= max(world, new_world) and (not drop_last or n >= size * world))
    old = [line(n, 0, size, drop_last, world, rank) for rank in range(world)]
    for one in old:
        for _ in range(steps):
            one.advance()
    at, epoch_start = old[0].position, old[0].epoch_start
    assert {(one.position, one.epoch_start) for one in old} == {(at, epoch_start)}
    new = [line(n, at, new_size, False, new_world, rank, epoch_start) for rank in range(new_world)]
    got = []
    for one in new:
        batches = []
        while one.epoch_start == epoch_start:
            batches.append(one.peek())
            one.advance()
        got.append(batches)
    assert rows_of(got) == list(range(at, epoch_start + n))


@given(st.integers(1, 60), SIZES, WORLDS, st.integers(0, 30))
@settings(deadline=None, max_examples=200)
def test_a_line_moved_on_by_rounds_is_one_that_went_them(n: int, size: int, world: int, steps: int) -> None:
    assume(n >= world)
    went = line(n, 0, size, False, world, world - 1)
    for _ in range(steps):
        went.advance()
    came = BatchLine(n, BatchShape(size, False, world - 1, world), went.epoch_start, went.plan.start, went.number)
    assert (came.peek(), came.position, came.epoch_start) == (went.peek(), went.position, went.epoch_start)


def test_a_line_at_the_end_of_an_epoch_stands_at_the_next() -> None:
    at_end = BatchLine(10, BatchShape(4), 20, 30)
    assert (at_end.epoch_start, at_end.position, at_end.peek()) == (30, 30, Batch(30, 34))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((10, BatchShape(4, False, 2, 2), 0, 0), "rank = 2 is not in"),
        ((10, BatchShape(4, False, -1, 2), 0, 0), "rank = -1 is not in"),
        ((10, BatchShape(0), 0, 0), "batch_size = 0"),
        ((10, BatchShape(4), 10, 9), "position 9 is not in the epoch"),
        ((10, BatchShape(4), 0, 11), "position 11 is not in the epoch"),
        ((10, BatchShape(4, True, 0, 3), 0, 0), "no batch of batch_size = 4 for world_size = 3 with drop_last"),
        ((3, BatchShape(1, False, 0, 4), 0, 0), "3 samples cannot be dealt to world_size = 4"),
        ((0, BatchShape(1), 0, 0), "no batch"),
        ((10, BatchShape(2, False, 0, 1), 0, 8, 2), "rounds = 2 of an epoch with 1 batches left"),
        ((10, BatchShape(2, False, 0, 1), 0, 8, -1), "rounds = -1"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        BatchLine(*arguments)


def lines(n: int, shards: int, world: int, size: int, drop_last: bool, epoch: int, at: int = 0) -> list[BatchLine]:
    """One for each rank of each shard, where each shard stands at its place `at` of the epoch."""
    m = Shard(shards).positions(n)
    return [
        BatchLine(n, BatchShape(size, drop_last, rank, world, Shard(shards, s)), epoch * m, epoch * m + at)
        for s in range(shards)
        for rank in range(world)
    ]


def places(line: BatchLine, shards: int, s: int) -> list[int]:
    """Places of the pass that are left in its epoch, in the order of all shards."""
    batches = [line.plan.batch(k) for k in range(len(line.plan))]
    return [p % line.n * shards + s for b in batches for p in range(b.start, b.stop)]


@given(st.integers(1, 160), st.integers(1, 5), st.integers(1, 4), SIZES, st.booleans(), st.integers(0, 3))
@settings(deadline=None, max_examples=600)
def test_ranks_of_all_shards_get_as_many_batches(
    n: int, shards: int, world: int, size: int, drop_last: bool, epoch: int
) -> None:
    """Each sample goes to one of them."""
    assume(n >= shards * world and not (drop_last and n // shards < world * size))
    made = lines(n, shards, world, size, drop_last, epoch)
    assert len({len(line.plan) for line in made}) == 1
    found = sorted(p for k, line in enumerate(made) for p in places(line, shards, k // world))
    if drop_last:
        assert found == list(range(n // shards // (world * size) * world * size * shards))
        batches = [line.plan.batch(k) for line in made for k in range(len(line.plan))]
        assert all(b.stop - b.start == size for b in batches)
    else:
        assert found == list(range(n))
        if size > 1:
            assert all(b.stop > b.start for line in made for b in map(line.plan.batch, range(len(line.plan))))


@given(st.integers(1, 160), st.integers(1, 5), st.integers(1, 4), SIZES, SIZES, st.integers(1, 4), st.data())
@settings(deadline=None, max_examples=400)
def test_the_rest_of_an_epoch_is_dealt_exactly_to_all_shards(
    n: int, shards: int, world: int, size: int, new_size: int, new_world: int, data: st.DataObject
) -> None:
    """The new sizes may be any."""
    assume(n >= shards * world and n >= shards * new_world)
    made = lines(n, shards, world, size, False, 2)
    had = data.draw(st.integers(0, len(made[0].plan) - 1))
    assert len({line.plan.resume_position(had) for line in made}) == 1
    at = made[0].plan.resume_position(had) - made[0].plan.start
    rest = lines(n, shards, new_world, new_size, False, 2, at)
    assert len({len(line.plan) for line in rest}) == 1
    found = sorted(p for k, line in enumerate(rest) for p in places(line, shards, k // new_world))
    assert found == list(range(at * shards, n))


def test_a_shard_one_sample_short_has_a_last_batch_one_shorter() -> None:
    plans = [BatchLine(15, BatchShape(4, shard=Shard(2, s)), 0, 0).plan for s in (0, 1)]
    assert [[(b.start, b.stop) for b in map(p.batch, range(len(p)))] for p in plans] == [
        [(0, 4), (4, 8)],
        [(0, 4), (4, 7)],
    ]


def test_too_few_samples_for_all_ranks_of_all_shards_are_refused() -> None:
    with pytest.raises(ValueError, match="world_size = 2 ranks in each of num_shards = 3"):
        BatchLine(5, BatchShape(1, rank=0, world_size=2, shard=Shard(3, 0)), 0, 0)
    with pytest.raises(ValueError, match="drop_last in each of num_shards = 2"):
        BatchLine(15, BatchShape(8, True, shard=Shard(2, 0)), 0, 0)


def crossing(n: int, start: int, at: int, size: int, rank: int = 0, world: int = 1, rounds: int = 0) -> BatchLine:
    return BatchLine(n, BatchShape(size, False, rank, world, batching="shuffle-repeat-batch"), start, at, rounds)


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 4), st.integers(0, 3), st.data())
@settings(deadline=None, max_examples=400)
def test_batches_across_epochs_are_full_and_leave_nothing_out(
    n: int, size: int, world: int, epoch: int, data: st.DataObject
) -> None:
    assume(size * world <= n)
    start = epoch * n
    at = data.draw(st.integers(start, start + n))
    ranks = [crossing(n, start, at, size, rank, world) for rank in range(world)]
    rows: list[int] = []
    for _ in range(3 * n // (size * world) + 3):
        assert len({(line.epoch_start, line.plan.start, line.number, line.position) for line in ranks}) == 1
        line = ranks[0]
        assert line.position == at + len(rows)
        assert line.epoch_start <= line.position < line.epoch_start + n  # a round is of the epoch in which it begins
        for line in ranks:
            batch = line.peek()
            assert batch.stop - batch.start == size
            rows += range(batch.start, batch.stop)
            line.advance()
    assert rows == list(range(at, at + len(rows)))


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 4))
@settings(deadline=None, max_examples=300)
def test_an_epoch_ends_with_the_round_that_holds_its_last_sample(n: int, size: int, world: int) -> None:
    assume(size * world <= n)
    line = crossing(n, 0, 0, size, 0, world)
    lengths = []
    for epoch in range(5):
        assert line.at_epoch_start
        said, taken = line.batches_per_epoch, 0
        while line.epoch_start == epoch * n:
            assert line.batches_per_epoch == said
            assert line.at_epoch_start == (taken == 0)
            line.advance()
            taken += 1
        lengths.append(taken)
        assert taken == said
        assert (epoch + 1) * n <= line.position < (epoch + 1) * n + size * world
    assert max(lengths) - min(lengths) <= 1
    assert sum(lengths) == -(-5 * n // (size * world))


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 3), st.integers(0, 60))
@settings(deadline=None, max_examples=300)
def test_a_line_across_epochs_resumes_from_place_or_position(n: int, size: int, world: int, steps: int) -> None:
    assume(size * world <= n)
    went = crossing(n, 0, 0, size, world - 1, world)
    for _ in range(steps):
        went.advance()
    came = crossing(n, went.epoch_start, went.plan.start, size, world - 1, world, went.number)
    loaded = crossing(n, went.epoch_start, went.position, size, world - 1, world)
    for _ in range(2 * n):
        assert (went.peek().start, went.peek().stop) == (came.peek().start, came.peek().stop)
        assert (went.peek().start, went.peek().stop) == (loaded.peek().start, loaded.peek().stop)
        assert went.epoch_start == came.epoch_start == loaded.epoch_start
        assert went.batches_per_epoch == came.batches_per_epoch == loaded.batches_per_epoch
        for line in (went, came, loaded):
            line.advance()


def test_batches_across_epochs_are_refused_where_holes_would_be() -> None:
    """Such batches would pass over an epoch or have a hole."""
    with pytest.raises(ValueError, match="more than an epoch of 7 rows"):
        crossing(7, 0, 0, 4, 0, 2)
    with pytest.raises(ValueError, match="not num_shards = 2 equal parts"):
        BatchLine(7, BatchShape(2, shard=Shard(2, 0), batching="shuffle-repeat-batch"), 0, 0)
    assert BatchLine(8, BatchShape(3, shard=Shard(2, 1), batching="shuffle-repeat-batch"), 0, 0).peek() == Batch(0, 3)


def test_whole_batches_are_shuffled_by_one_batching_only() -> None:
    assert [batch_rows(batching, 5) for batching in get_args(Batching)] == [0, 0, 5]
