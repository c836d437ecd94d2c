from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prepserver.order import NO_SAMPLE, CyclicOrder, Order, Shuffle, make_order
from prepserver.pipeline.batches import check_start
from prepserver.pipeline.shard import Shard

KINDS: tuple[Shuffle, ...] = get_args(Shuffle)
SEEDS = st.integers(0, 2**63 - 1)

# An order is a promise: a job that was saved under one release is resumed under another.
GOLDEN: list[tuple[Shuffle, int, int, int, list[int]]] = [
    ("none", 10, 0, 7, [7, 8, 9, 0, 1, 2]),
    ("none", 1281167, 42, 10**12, [472154, 472155, 472156, 472157, 472158, 472159]),
    ("full", 10, 0, 0, [5, 9, 0, 3, 2, 8]),
    ("full", 10, 0, 7, [1, 7, 6, 4, 6, 2]),
    ("full", 20000, 0, 9998, [13630, 7532, 18582, 8014, 10349, 9806]),
    ("full", 50000, 2**63 - 1, 149997, [10388, 43899, 48150, 939, 4933, 11885]),
    ("full", 1281167, 42, 10**12, [72442, 590023, 322065, 45081, 276165, 154930]),
    ("full", 10**9, 5, 2**62, [383315393, 889783460, 28159385, 696184530, 404743073, 683645502]),
    ("cyclic", 10, 0, 0, [4, 0, 7, 3, 2, 9]),
    ("cyclic", 10, 0, 7, [5, 8, 6, 0, 5, 7]),
    ("cyclic", 20000, 0, 9998, [13380, 1553, 17228, 6113, 8895, 1714]),
    ("cyclic", 50000, 2**63 - 1, 149997, [45070, 22972, 15920, 40384, 23207, 22264]),
    ("cyclic", 1281167, 42, 10**12, [972857, 512803, 225880, 999344, 909453, 978926]),
    ("cyclic", 10**9, 5, 2**62, [689376282, 615929690, 363907503, 421760992, 738689392, 308005408]),
]


def cyclic(n: int, seed: int) -> CyclicOrder:
    order = make_order("cyclic", n, seed)
    assert isinstance(order, CyclicOrder)
    return order


@pytest.mark.parametrize(("kind", "n", "seed", "position", "expected"), GOLDEN)
def test_values_are_those_of_the_first_release(
    kind: Shuffle, n: int, seed: int, position: int, expected: list[int]
) -> None:
    assert make_order(kind, n, seed).indices(position, 6) == expected


@pytest.mark.parametrize("kind", KINDS)
@given(n=st.integers(1, 3000), seed=SEEDS, pass_=st.integers(0, 2**40))
def test_a_pass_visits_every_sample_once(kind: Shuffle, n: int, seed: int, pass_: int) -> None:
    assert sorted(make_order(kind, n, seed).indices(pass_ * n, n)) == list(range(n))


@pytest.mark.parametrize("kind", KINDS)
@given(
    n=st.integers(1, 40) | st.integers(500, 30_000) | st.integers(1, 1 << 40),
    seed=SEEDS,
    position=st.integers(0, 200_000) | st.integers(0, 2**62 - 40),
    count=st.integers(0, 40),
)
def test_a_run_is_the_sequence_of_its_single_positions(
    kind: Shuffle, n: int, seed: int, position: int, count: int
) -> None:
    order = make_order(kind, n, seed)
    singly = [make_order(kind, n, seed).indices(position + i, 1)[0] for i in range(min(count, 3))]
    singly += [order.indices(position + i, 1)[0] for i in range(len(singly), count)]
    assert order.indices(position, count) == singly


@pytest.mark.parametrize("kind", KINDS)
@given(n=st.integers(1, 10**6), seed=SEEDS, position=st.integers(0, 2**62), splits=st.lists(st.integers(0, 700)))
def test_values_do_not_depend_on_cuts_or_earlier_questions(
    kind: Shuffle, n: int, seed: int, position: int, splits: list[int]
) -> None:
    order = make_order(kind, n, seed)
    at, pieces = position - min(position, sum(splits)), []
    start = at
    for size in splits:
        pieces += order.indices(at, size)
        at += size
    assert make_order(kind, n, seed).indices(start, sum(splits)) == pieces


@pytest.mark.parametrize("n", [16_384, 24_577, 50_000, 600_000])
def test_n_positions_from_any_block_visit_every_sample_once(n: int) -> None:
    order = cyclic(n, 11)
    starts = order.starts
    for start in {starts[1], starts[len(starts) // 2], starts[-1]}:
        position = order.next_start(3 * n + start)
        assert position == 3 * n + start
        assert sorted(order.indices(position, n)) == list(range(n))


def test_a_block_holds_the_same_samples_in_every_pass() -> None:
    """Each pass has them in another order."""
    n = 50_000
    order = cyclic(n, 1)
    first = order.indices(0, order.starts[1])
    later = order.indices(7 * n, order.starts[1])
    assert sorted(first) == sorted(later)
    assert sum(a == b for a, b in zip(first, later, strict=True)) < 10


def test_blocks_are_dealt_from_the_whole_source() -> None:
    order = cyclic(100_000, 1)
    block = order.indices(0, order.starts[1])
    tenths = [sum(index // 10_000 == k for index in block) for k in range(10)]
    assert min(tenths) > 0.9 * len(block) / 10


@pytest.mark.parametrize(("n", "blocks"), [(1, 1), (8191, 1), (16_383, 1), (16_384, 2), (8192 * 64, 64), (10**9, 64)])
def test_the_number_of_blocks_is_n_over_8192_from_1_to_64(n: int, blocks: int) -> None:
    order = cyclic(n, 0)
    assert len(order.starts) == blocks
    assert order.starts == tuple(k * n // blocks for k in range(blocks))


@given(n=st.integers(1, 10**6), position=st.integers(0, 2**50))
def test_the_next_start_is_the_first_boundary_from_there_on(n: int, position: int) -> None:
    order = cyclic(n, 0)
    start = order.next_start(position)
    pass_, offset = divmod(start, n)
    assert offset in order.starts
    before = [pass_ * n + s for s in order.starts if s < offset] or [(pass_ - 1) * n + order.starts[-1]]
    assert before[-1] < position <= start
    assert order.next_start(start) == start


@pytest.mark.parametrize("kind", ["none", "full"])
def test_epochs_of_the_other_orders_begin_at_passes(kind: Shuffle) -> None:
    order = make_order(kind, 20_000, 0)
    assert [order.next_start(p) for p in (0, 1, 19_999, 20_000, 20_001)] == [0, 20_000, 20_000, 20_000, 40_000]


@pytest.mark.parametrize("kind", ["full", "cyclic"])
def test_other_seeds_and_other_passes_give_other_orders(kind: Shuffle) -> None:
    n = 1000
    orders = [make_order(kind, n, seed).indices(pass_ * n, n) for seed in (0, 1, 2**63 - 1) for pass_ in (0, 1, 2**40)]
    for i, one in enumerate(orders):
        for other in orders[i + 1 :]:
            # Two random permutations agree in one place on average.
            assert sum(a == b for a, b in zip(one, other, strict=True)) < 9


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in KINDS),
        *((kind, {"shard": Shard(4096, 17)}) for kind in KINDS),
        ("full", {"batch_rows": 300}),
    ],
)
def test_a_thousand_million_samples_cost_no_memory(kind: Shuffle, options: dict[str, Any]) -> None:
    def run() -> None:
        order: Order = make_order(kind, 10**9, 3, **options)
        for position in (0, order.n - 8, 2**61):
            assert len(set(order.indices(position, 16))) >= 15

    assert least_peak_bytes(run) < 500_000


def least_peak_bytes(run: Callable[[], None]) -> int:
    """What a call takes at its peak: other threads of the process, and what a first call leaves, only add to it."""
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        try:
            run()
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    return min(peaks)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_caller_does_to_a_run_does_not_come_back(kind: Shuffle) -> None:
    order = make_order(kind, 100, 0)
    first = order.indices(0, 100)
    kept = list(first)
    first.clear()
    assert order.indices(0, 100) == kept


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("position", "count"), [(-1, 1), (0, -1), (2**62 + 1, 1)])
def test_positions_and_counts_out_of_range_are_refused(kind: Shuffle, position: int, count: int) -> None:
    with pytest.raises(ValueError, match="position"):
        make_order(kind, 10, 0).indices(position, count)


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_after_a_negative_position_is_refused(kind: Shuffle) -> None:
    with pytest.raises(ValueError, match="position"):
        make_order(kind, 10, 0).next_start(-1)


@pytest.mark.parametrize("n", [0, -5, (1 << 40) + 1])
def test_a_number_of_samples_out_of_range_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match="n = "):
        make_order("full", n, 0)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="seed"):
        make_order("full", 10, seed)


@pytest.mark.parametrize("kind", KINDS)
@given(
    n=st.integers(1, 60) | st.integers(16_000, 40_000),
    seed=SEEDS,
    shards=st.integers(1, 7),
    pass_=st.integers(0, 2**40),
    offset=st.integers(0, 40_000),
)
def test_the_shards_of_a_pass_are_the_pass_dealt_in_turn(
    kind: Shuffle, n: int, seed: int, shards: int, pass_: int, offset: int
) -> None:
    whole = make_order(kind, n, seed)
    first = offset % n // shards
    count = min(100, -(-n // shards) - first)
    dealt = [make_order(kind, n, seed, Shard(shards, s)) for s in range(shards)]
    assert {(order.n, order.samples) for order in dealt} == {(-(-n // shards), n)}
    rows = zip(*(order.indices(pass_ * order.n + first, count) for order in dealt), strict=True)
    found = [index for row in rows for index in row]
    there = min(n - first * shards, len(found))
    assert found[:there] == whole.indices(pass_ * n + first * shards, there)
    assert found[there:] == [NO_SAMPLE] * (len(found) - there)


@pytest.mark.parametrize("kind", KINDS)
def test_the_epochs_of_a_shard_begin_at_passes(kind: Shuffle) -> None:
    order = make_order(kind, 20_000, 0, Shard(3, 2))
    assert [order.next_start(p) for p in (0, 1, 6667, 6668)] == [0, 6667, 6667, 13_334]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_a_shard_crosses_passes(kind: Shuffle) -> None:
    order = make_order(kind, 7, 1, Shard(2, 1))
    run = order.indices(0, 40)
    assert run == [order.indices(p, 1)[0] for p in range(40)]
    assert [run[p] == NO_SAMPLE for p in range(8)] == [False, False, False, True] * 2


WHOLE_BATCHES = [
    (10, 0, 3, 10, [0, 1, 2, 6, 7, 8, 3, 4, 5, 9]),
    (1281167, 42, 256, 10**12, [148058, 148059, 148060, 148061, 148062, 148063]),
]


@pytest.mark.parametrize(("n", "seed", "rows", "position", "expected"), WHOLE_BATCHES)
def test_whole_batches_come_as_in_the_first_release(
    n: int, seed: int, rows: int, position: int, expected: list[int]
) -> None:
    assert make_order("full", n, seed, batch_rows=rows).indices(position, len(expected)) == expected


@given(
    n=st.integers(1, 400) | st.integers(5000, 9000), rows=st.integers(1, 70), seed=SEEDS, pass_=st.integers(0, 2**40)
)
def test_whole_batches_are_shuffled_and_the_rest_stays_last(n: int, rows: int, seed: int, pass_: int) -> None:
    order = make_order("full", n, seed, batch_rows=rows)
    found = order.indices(pass_ * n, n)
    assert sorted(found) == list(range(n))
    whole = n // rows * rows
    assert found[whole:] == list(range(whole, n))
    for at in range(0, whole, rows):
        assert found[at] % rows == 0
        assert found[at : at + rows] == list(range(found[at], found[at] + rows))
    again = order.indices((pass_ + 1) * n, n)
    assert n < 50 * rows or found != again
    assert order.next_start(pass_ * n + 1) == (pass_ + 1) * n


@given(n=st.integers(1, 9000), rows=st.integers(1, 70), shards=st.integers(1, 4), seed=SEEDS)
def test_batches_of_sorted_samples_differ_between_passes(n: int, rows: int, shards: int, seed: int) -> None:
    """The samples of a batch stay within a run of some batches, and all shards together have each once."""
    batches = max(2, min(64, n // (rows * shards) // 64))
    run, n = batches * rows * shards, max(n, shards)
    passes = []
    for pass_ in (0, 1):
        whole, found = [], []
        for shard in range(shards):
            order = make_order("full", n, seed, Shard(shards, shard), rows, is_sorted=True)
            part = [index for index in order.indices(pass_ * order.n, order.n) if index != NO_SAMPLE]
            whole += [part[at : at + rows] for at in range(0, n // shards // rows * rows, rows)]
            found += part
        assert sorted(found) == list(range(n))
        assert all(max(batch) // run == min(batch) // run for batch in whole)
        passes.append({frozenset(batch) for batch in whole})
    assert rows < 4 or n < 60 * rows * shards or len(passes[0] & passes[1]) < len(passes[0]) / 4


def test_batches_of_sorted_samples_never_change() -> None:
    found = [make_order("full", 1000, 7, Shard(2, 1), 4, is_sorted=True).indices(at, 8) for at in (0, 500, 996)]
    assert found == [
        [329, 326, 322, 335, 836, 839, 833, 834],
        [787, 794, 793, 785, 523, 515, 514, 522],
        [728, 724, 729, 727, 48, 51, 55, 54],
    ]


@given(n=st.integers(2, 300), rows=st.integers(1, 20), shards=st.integers(1, 5), pass_=st.integers(0, 9))
def test_shards_of_whole_batches_are_cut_from_every_nth_sample(n: int, rows: int, shards: int, pass_: int) -> None:
    found = []
    for s in range(shards):
        order = make_order("full", n, 5, Shard(shards, s), rows)
        part = order.indices(pass_ * order.n, order.n)
        whole = (n // shards) // rows * rows
        for at in range(0, whole, rows):
            assert part[at : at + rows] == list(range(part[at], part[at] + rows * shards, shards))
        if Shard(shards, s).is_short(n):
            assert part.pop() == NO_SAMPLE
        found += part
    assert sorted(found) == list(range(n))


@pytest.mark.parametrize("kind", ["none", "cyclic"])
def test_whole_batches_are_of_a_full_permutation_only(kind: Shuffle) -> None:
    with pytest.raises(ValueError, match="batch_rows = 4"):
        make_order(kind, 10, 0, batch_rows=4)


def test_a_run_may_begin_only_where_an_epoch_does() -> None:
    for kind in KINDS:
        order = make_order(kind, 10, 1)
        check_start(order, 0, 0)
        check_start(order, -20, 2)
        with pytest.raises(ValueError, match="start = -30: epoch 2 would begin before position 0"):
            check_start(order, -30, 2)
    with pytest.raises(ValueError, match="start = 3: no epoch begins there in this order; the next place is 10"):
        check_start(make_order("full", 10, 1), 3, 1)


@given(st.integers(1, 60), st.lists(st.integers(0, 3), min_size=1, max_size=9), SEEDS, st.sampled_from(KINDS))
def test_a_pattern_stays_while_its_kinds_are_shuffled(periods: int, kinds: list[int], seed: int, kind: Shuffle) -> None:
    pattern = tuple(sorted(set(kinds)).index(each) for each in kinds)
    n = periods * len(pattern)
    order = make_order(kind, n, seed, pattern=pattern)
    for pass_ in (0, 3):
        indices = order.indices(pass_ * n, n)
        assert sorted(indices) == list(range(n))
        assert [pattern[index % len(pattern)] for index in indices] == list(pattern) * periods


def test_a_pattern_stays_in_every_block_too() -> None:
    pattern, n = (0, 1, 0), 3 * 8192
    order = make_order("cyclic", n, 5, pattern=pattern)
    start = order.next_start(1)
    assert start == 8190  # the last multiple of the pattern before a third of the samples
    epoch = order.indices(start, n)
    assert sorted(epoch) == list(range(n))
    assert [index % 3 == 1 for index in epoch] == [False, True, False] * 8192
    of_kind = [index // 3 for index in epoch if index % 3 == 1]
    assert of_kind != sorted(of_kind)
    # Kinds of one size are not shuffled alike.
    same = make_order("full", 1000, 5, pattern=(0, 1)).indices(0, 1000)
    assert [index // 2 for index in same[::2]] != [index // 2 for index in same[1::2]]


def test_a_pattern_must_divide_the_samples() -> None:
    with pytest.raises(ValueError, match="n = 10: must be a multiple of the 3 samples of a pattern"):
        make_order("full", 10, 0, pattern=(0, 0, 1))


@given(
    st.integers(1, 200), st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(1, 6), st.sampled_from(KINDS)
)
def test_every_shard_has_all_kinds_of_a_pattern_as_often(
    periods: int, kinds: list[int], shards: int, kind: Shuffle
) -> None:
    pattern = tuple(sorted(set(kinds)).index(each) for each in kinds)
    n = periods * len(pattern)
    dealt = [make_order(kind, n, 1, Shard(shards, s), pattern=pattern) for s in range(shards)]
    lines = [order.indices(3 * order.n, order.n) for order in dealt]
    whole = make_order(kind, n, 1, pattern=pattern).indices(3 * n, n)
    for taken in range(dealt[0].n + 1):  # all shards together stand where the whole pass does
        assert {*whole[: taken * shards]} == {index for line in lines for index in line[:taken]} - {NO_SAMPLE}
    assert [NO_SAMPLE in line for line in lines] == [Shard(shards, s).is_short(n) for s in range(shards)]
    window = len(pattern) // math.gcd(len(pattern), shards) * shards
    for line in lines:
        for start in range(0, n // shards - window + 1, window):
            found = Counter(pattern[index % len(pattern)] for index in line[start : start + window])
            assert found == {each: pattern.count(each) * window // len(pattern) for each in set(pattern)}
