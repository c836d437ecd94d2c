"""Stays of ranks put together: coming back, going back, and being cut short."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prepserver.audit.history import History
from prepserver.audit.proof import Account
from prepserver.audit.records import Attached, Bad, Job, Left, Progress, Record, Rows
from prepserver.audit.stays import Stay, chains
from prepserver.audit.training import judged
from prepserver.order import make_order

N = 100
ROWS = Rows({"source": "SyntheticImages"}, "d", "/i", N, "cyclic", 0, [])


def stay(told: int, back: int, left: int | None = None, rows: Rows = ROWS, **more: object) -> Stay:
    fields = {
        "rows": 0, "daemon": "1", "time": "t", "rank": 0, "world_size": 1, "batch_size": 8, "drop_last": False,
        "epoch": 0, "epoch_start": 0, "position": 0, "rounds": 0, "ring": 64, "resumed": False,
    }  # fmt: skip
    end = Left(0, "t", left) if left is not None else None
    return Stay(rows, Attached(**{**fields, **more}), told, back, end)  # type: ignore[arg-type]


def accounts(*stays: Stay) -> list[Account]:
    return [judged([epoch]) for epoch in History(stays).epochs]


def verdicts(*stays: Stay) -> list[tuple[int, int, int, int]]:
    return [(a.once, len(a.missing), len(a.repeated), a.untaken) for a in accounts(*stays)]


def test_two_epochs_and_a_bit() -> None:
    assert verdicts(stay(240, 216)) == [(100, 0, 0, 0), (100, 0, 0, 0), (16, 0, 0, 84)]


def test_unreleased_rows_count_as_taken_if_the_last_word_says_so() -> None:
    assert verdicts(stay(100, 96, left=100)) == [(100, 0, 0, 0)]
    assert verdicts(stay(100, 96)) == [(96, 0, 0, 4)]


def test_a_client_cannot_have_taken_more_than_it_was_told() -> None:
    assert verdicts(stay(48, 40, left=100)) == [(48, 0, 0, 52)]


def test_a_client_that_prefetched_more_than_was_used_says_so() -> None:
    assert verdicts(stay(80, 72, left=40)) == [(40, 0, 0, 60)]


def test_coming_back_after_a_restart_goes_on_where_it_stood() -> None:
    again = stay(100, 100, position=0, rounds=7, resumed=True, daemon="2")
    assert verdicts(stay(64, 48), again) == [(100, 0, 0, 0)]  # 48 to 56: the client says that it has them
    assert verdicts(stay(64, 64), again) == [(100, 0, 0, 0)]  # 56 to 64: given back, but its loop never saw them
    assert History([stay(40, 40), again]).epochs[0].by_word == 16  # the log ends 16 rows before the daemon did


def test_coming_back_beyond_what_a_ring_can_hold_leaves_a_hole() -> None:
    again = stay(100, 100, rounds=10, resumed=True, daemon="2", ring=16)
    assert verdicts(stay(24, 24, ring=16), again) == [(44, 56, 0, 0)]


def test_a_fresh_start_vouches_for_nothing_before_it() -> None:
    fresh = stay(200, 200, epoch=1, epoch_start=N, position=N, daemon="2")
    assert verdicts(stay(96, 88), fresh) == [(88, 0, 0, 12), (100, 0, 0, 0)]


def test_going_back_to_a_checkpoint_takes_later_rows_again() -> None:
    back = stay(200, 200, epoch=0, position=48, resumed=True, daemon="2", batch_size=13)
    history = History([stay(140, 132), back])
    assert [history.again[e.number] for e in history.epochs] == [52, 32]
    assert verdicts(stay(140, 132), back) == [(100, 0, 0, 0), (100, 0, 0, 0)]


def test_an_epoch_begun_anew_elsewhere_replaces_the_first_try() -> None:
    rows = replace(ROWS, shuffle="none")
    moved = stay(150, 150, rows=rows, epoch_start=50, position=50, daemon="2")
    assert verdicts(stay(48, 48, rows=rows), moved) == [(100, 0, 0, 0)]


@given(st.integers(1, 5), st.integers(1, 30), st.booleans(), st.randoms(use_true_random=False))
def test_ranks_that_return_repeatedly_have_each_row_once(
    world_size: int, batch_size: int, drop_last: bool, random: object
) -> None:
    shape: dict[str, Any] = {"world_size": world_size, "batch_size": batch_size, "drop_last": drop_last}
    if drop_last and world_size * batch_size > N:
        return
    cuts = [random.randrange(4) for _ in range(world_size)]  # type: ignore[attr-defined]
    stays = []
    for daemon, rank in itertools.product(range(5), range(world_size)):
        line = stay(0, 0, rank=rank, **shape).line()
        for _ in range(min(cuts[rank] * daemon, len(line.plan) - 1)):
            line.advance()
        rounds = line.number
        begun = stay(0, 0, rank=rank, rounds=rounds, resumed=daemon > 0, daemon=str(daemon), **shape)
        begun.told = begun.back = begun.first
        if daemon == 4:
            begun.told = begun.back = N + begun.line().plan.batch(0).start
        else:
            begun.told += batch_size * world_size
        begun.attached = replace(begun.attached, ring=10 * batch_size * world_size)
        stays.append(begun)
    first, *_ = accounts(*stays)
    assert (first.missing, first.repeated, first.untaken) == ([], [], 0)
    assert first.once + first.left_out == N
    assert first.left_out == (N % (world_size * batch_size) if drop_last else 0)


def test_ranks_at_other_daemons_are_not_missed() -> None:
    local: dict[str, Any] = {"world_size": 4, "local_ranks": (0, 2), "batch_size": 5}
    stays = [stay(100, 200, rank=rank, **local) for rank in (0, 1)]
    (first, *_) = accounts(*stays)
    assert (first.once, first.elsewhere, first.missing, first.untaken) == (50, 50, [], 0)


def test_a_rank_that_never_came_has_its_rows_before_it() -> None:
    (first, *_) = accounts(stay(100, 200, world_size=2, batch_size=5))
    assert (first.once, first.untaken, first.missing) == (50, 50, [])


def test_batches_are_numbered_as_the_rank_got_them() -> None:
    history = History([stay(100, 48), stay(100, 64, position=48, batch_size=16, resumed=True, daemon="2")])
    batches = history.epochs[0].batches(0)
    assert [b.start for b in batches] == [0, 8, 16, 24, 32, 40, 48, 64, 80, 96]


def test_clients_that_share_a_name_are_told_apart() -> None:
    """They are told apart by what they read and when they are attached."""
    other = replace(ROWS, digest="validation")
    log: list[Record] = [
        Job(1, "j", 0), ROWS, replace(stay(0, 0).attached, rows=1), Progress(2, 100, 100),
        other, replace(stay(0, 0).attached, rows=4), Progress(5, 100, 100), Left(5, "t", 100),
        replace(stay(0, 0).attached, rows=1), Progress(8, 50, 48), Left(2, "t", 100),
        Bad(8, [(3, 4, "bad")]),
        replace(stay(0, 0, epoch=1, epoch_start=N, position=N).attached, rows=1), Progress(12, 200, 200),
    ]  # fmt: skip
    found, wrong = chains([list(enumerate(log))])
    assert wrong == []
    assert [len(chain) for chain in found] == [2, 1, 1]
    assert [s.first for s in found[0]] == [0, N]
    assert found[1][0].rows == other
    assert found[2][0].bad == {3: (4, "bad")}


def runs(*stays: Stay) -> list[list[str]]:
    """The chains of a log that holds `stays` one after another, by their `time`; those with `left` leave at once."""
    log: list[Record] = [Job(1, "j", 0)]
    for each in stays:
        log.append(each.rows)
        log.append(replace(each.attached, rows=len(log) - 1))
        of = len(log) - 1
        log.append(Progress(of, each.told, each.back))
        if each.left is not None:
            log.append(replace(each.left, of=of))
    found, wrong = chains([list(enumerate(log))])
    assert wrong == []
    return [[each.attached.time for each in chain] for chain in found]


def test_a_job_that_begins_anew_under_its_name_is_a_new_training() -> None:
    first, anew = stay(100, 100, left=100, time="1"), stay(100, 100, left=100, time="2")
    assert runs(first, anew) == [["1"], ["2"]]
    assert runs(first, replace_daemon(anew)) == [["1"], ["2"]]
    assert runs(stay(48, 40, time="1"), replace_daemon(anew)) == [["1"], ["2"]]  # the daemon was killed under it
    onward = stay(200, 200, left=200, epoch=1, epoch_start=N, position=N, time="1b")
    resumed = stay(100, 100, left=100, position=48, resumed=True, time="2b")
    assert runs(first, onward, anew, resumed) == [["1", "1b"], ["2", "2b"]]


def replace_daemon(of: Stay) -> Stay:
    return replace(of, attached=replace(of.attached, daemon="2"))


def test_a_checkpoint_is_of_the_last_training_that_came_so_far() -> None:
    long = stay(300, 300, left=300, time="1")
    short = stay(48, 48, left=48, time="2")
    inside = stay(300, 300, left=300, epoch=2, epoch_start=2 * N, position=2 * N + 48, resumed=True, time="3")
    assert runs(long, short, inside) == [["1", "3"], ["2"]]
    assert runs(long, short, stay(80, 80, position=40, resumed=True, time="3")) == [["1"], ["2", "3"]]
    moved = stay(400, 400, left=400, epoch_start=150, position=150, time="2")  # began elsewhere in cyclic order
    later = stay(400, 400, epoch=1, epoch_start=250, position=298, resumed=True, time="3")
    assert runs(long, moved, short, later) == [["1"], ["2", "3"], ["2"]]


def test_ranks_begin_another_training_together() -> None:
    """It does not matter which of them comes first."""

    def rank(number: int, run: str, left: bool = True, **more: Any) -> Stay:
        return stay(100, 200, 200 if left else None, rank=number, world_size=2, time=f"{run}.{number}", **more)

    both = [rank(0, "1", left=False), rank(1, "1")]
    log: list[Record] = [Job(1, "j", 0), ROWS]
    for run in (1, 2):
        of = []
        for number in (1, 0) if run == 2 else (0, 1):
            log.append(replace(rank(number, str(run)).attached, rows=1))
            of.append(len(log) - 1)
        log += [Left(number, "t", 200) for number in of]
    found, _ = chains([list(enumerate(log))])
    assert [[each.attached.time for each in chain] for chain in found] == [["1.0", "1.1"], ["2.1", "2.0"]]
    # one rank alone came of the first run
    assert runs(rank(0, "1"), rank(1, "2", left=False), rank(0, "2")) == [["1.0"], ["2.1", "2.0"]]
    # a daemon was killed before the second rank came: the first one will be back
    assert runs(both[0], rank(1, "1", daemon="2")) == [["1.0", "1.1"]]
    # other ranks are here now, or another number of them
    assert runs(rank(0, "1", left=False), stay(100, 100, rank=1, world_size=4, time="2")) == [["1.0"], ["2"]]


def test_records_of_what_is_not_there_are_reported() -> None:
    log: list[Record] = [Job(1, "j", 0), Progress(7, 1, 1), replace(stay(0, 0).attached, rows=5), ROWS]
    log.append(replace(stay(0, 0, position=300).attached, rows=3))
    found, wrong = chains([list(enumerate(log))])
    assert found == []
    assert [text.split(":")[0] for text in wrong] == ["line 2", "line 3", "line 5"]


CROSSING: dict[str, Any] = {"batching": "shuffle-repeat-batch", "batch_size": 8}


def test_a_batch_that_crosses_epochs_counts_for_both() -> None:
    # 13 batches of 8 are 104 rows: the last 4 are of the next epoch
    assert verdicts(stay(104, 104, **CROSSING)) == [(100, 0, 0, 0)]
    assert verdicts(stay(112, 112, **CROSSING)) == [(100, 0, 0, 0), (12, 0, 0, 88)]
    assert verdicts(stay(208, 208, **CROSSING)) == [(100, 0, 0, 0), (100, 0, 0, 0), (8, 0, 0, 92)]
    assert verdicts(stay(96, 96, **CROSSING)) == [(96, 0, 0, 4)]


def test_ranks_whose_batches_cross_epochs_have_them_together() -> None:
    ranks = [
        stay(told, told, rank=rank, world_size=2, **CROSSING) for rank, told in ((0, 104), (1, 112))
    ]  # 7 rounds of 16: the last 12 rows are of the next epoch
    assert verdicts(*ranks) == [(100, 0, 0, 0)]
    ahead = stay(120, 120, rank=0, world_size=2, **CROSSING)
    assert verdicts(ahead, ranks[1]) == [(100, 0, 0, 0), (20, 0, 0, 80)]
    behind = stay(88, 88, rank=1, world_size=2, **CROSSING)
    assert verdicts(ahead, behind) == [(92, 0, 0, 8), (12, 0, 0, 88)]


def test_crossing_epochs_go_on_after_any_kind_of_return() -> None:
    """A job may return after a restart, from a checkpoint, or afresh."""
    first = stay(120, 112, **CROSSING)
    back = stay(240, 240, epoch=1, epoch_start=N, position=104, rounds=1, resumed=True, daemon="2", **CROSSING)
    assert verdicts(first, back) == [(100, 0, 0, 0), (100, 0, 0, 0), (40, 0, 0, 60)]
    loaded = stay(232, 232, epoch=0, position=48, resumed=True, daemon="2", **{**CROSSING, "batch_size": 23})
    assert verdicts(first, loaded) == [(100, 0, 0, 0), (100, 0, 0, 0), (32, 0, 0, 68)]
    anew = stay(204, 204, epoch=1, epoch_start=N, position=N, daemon="2", **CROSSING)
    assert verdicts(first, anew) == [(100, 0, 0, 0), (100, 0, 0, 0)]


def test_a_bad_row_in_a_batch_across_epochs_is_in_its_own_epoch() -> None:
    crossed = stay(208, 208, **CROSSING)
    index = make_order(ROWS.shuffle, N, ROWS.seed).indices(102, 1)[0]
    crossed.bad[102] = (index, "broken")
    found = accounts(crossed)
    assert [a.replaced for a in found[:2]] == [[], [(index, 102, "broken")]]
    assert History([crossed]).epochs[0].bad == {102: (index, "broken")}
