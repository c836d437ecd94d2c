"""An epoch divided among shards, as one machine's log records it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prepserver.audit.proof import Account
from prepserver.audit.records import Attached, Job, Left, Record, Rows
from prepserver.audit.stays import Stay, chains
from prepserver.audit.training import Training, judged

N = 61
ROWS = Rows({"source": "SyntheticImages"}, "d", "/i", N, "cyclic", 0, [])


def stay(shards: int, index: int, start: int, rounds: int | None, n: int = N, **more: object) -> Stay:
    """Shard `index` continues at `start` for so many rounds, None for the rest of the epoch; returns its position."""
    rows = replace(ROWS, n=n, num_shards=shards, shard_index=index)
    fields = {
        "rows": 0, "daemon": "1", "time": "t", "rank": 0, "world_size": 1, "batch_size": 4, "drop_last": False,
        "epoch": 0, "epoch_start": 0, "position": start, "rounds": 0, "ring": 64, "resumed": start > 0,
    }  # fmt: skip
    found = Stay(rows, Attached(**{**fields, **more}), 0, 0)  # type: ignore[arg-type]
    line = found.line()
    for _ in range(len(line.plan) if rounds is None else min(rounds, len(line.plan))):
        line.advance()
    found.told = found.back = line.peek().start
    found.left = Left(0, "t", found.told)
    return found


def accounts(*stays: Stay) -> list[Account]:
    return [judged(parts) for parts in Training(stays).epochs]


def parted(account: Account) -> tuple[int, int, int, int, int]:
    return account.once, account.elsewhere, account.outside, account.untaken, len(account.missing + account.repeated)


def test_a_shard_after_the_whole_and_the_whole_after_a_shard() -> None:
    assert [parted(a) for a in accounts(stay(1, 0, 0, 6), stay(2, 1, 12, None))] == [(24 + 18, 19, 0, 0, 0)]
    assert [parted(a) for a in accounts(stay(2, 1, 0, 3), stay(1, 0, 24, None))] == [(12 + 37, 12, 0, 0, 0)]
    assert [parted(a) for a in accounts(stay(2, 1, 0, 3), stay(1, 0, 24, 1))] == [(12 + 4, 12, 0, 33, 0)]


def test_a_log_that_begins_after_the_epoch_did_says_so() -> None:
    assert [parted(a) for a in accounts(stay(1, 0, 24, None))] == [(37, 0, 24, 0, 0)]
    assert [parted(a) for a in accounts(stay(2, 1, 12, None))] == [(18, 0, 12, 0, 0)]  # of its own samples


def test_what_was_taken_between_two_runs_is_not_in_the_log() -> None:
    assert [parted(a) for a in accounts(stay(2, 0, 0, 2), stay(2, 0, 16, None))] == [(8 + 15, 0, 8, 0, 0)]
    assert [parted(a) for a in accounts(stay(1, 0, 0, 2), stay(2, 0, 12, None))] == [(8 + 19, 18, 16, 0, 0)]
    later = stay(2, 0, 31, None, epoch=1, epoch_start=31, resumed=True)
    assert [parted(a) for a in accounts(stay(1, 0, 0, 2), later)] == [(8, 0, 53, 0, 0), (31, 0, 0, 0, 0)]


def test_what_only_one_rank_lacks_is_missing() -> None:
    """The other rank was through with it."""
    ranks = [stay(1, 0, 0, rounds, rank=rank, world_size=2) for rank, rounds in ((0, 3), (1, 2))]
    assert [parted(a) for a in accounts(*ranks, stay(2, 0, 12, None))] == [(20 + 19, 18, 0, 0, 4)]


def test_an_epoch_that_was_left_for_a_fresh_one_stays_untaken() -> None:
    fresh = stay(2, 0, 31, None, epoch=1, epoch_start=31, resumed=False)
    assert [parted(a) for a in accounts(stay(1, 0, 0, 2), fresh)] == [(8, 0, 0, 53, 0), (31, 0, 0, 0, 0)]


def test_batches_across_epochs_may_reach_into_a_sharded_one() -> None:
    shape: dict[str, Any] = {"n": 60, "batching": "shuffle-repeat-batch", "batch_size": 8}
    whole = stay(1, 0, 0, 8, **shape)  # 64, of which 4 are of the next epoch
    half = stay(2, 1, 32, None, epoch=1, epoch_start=30, **shape)
    assert [parted(a) for a in accounts(whole, half)][:2] == [(60, 0, 0, 0, 0), (4 + 28, 28, 0, 0, 0)]


def test_concurrent_shards_are_one_training_if_they_agree() -> None:
    """Two different numbers of shards at the same time are two trainings."""
    log: list[Record] = [Job(1, "j", 0)]
    for shards, index in ((2, 0), (2, 1), (1, 0), (2, 1)):
        log.append(replace(ROWS, num_shards=shards, shard_index=index))
        log.append(replace(stay(shards, index, 0, 1).attached, rows=len(log) - 1))
    found, wrong = chains([list(enumerate(log))])
    assert wrong == []
    assert [[(s.rows.num_shards, s.rows.shard_index) for s in c] for c in found] == [
        [(2, 0), (2, 1)],
        [(1, 0)],
        [(2, 1)],
    ]


@dataclass(frozen=True)
class Leg:
    """From place `start` of all samples to place `stop`; `machines` has who reads which shard."""

    start: int
    stop: int
    machines: tuple[int, ...]


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Leg], list[list[Stay]]]:
    """An epoch of several machines with changing numbers of shards, and the contents of their logs."""
    machines = draw(st.integers(1, 3))
    legs: list[Leg] = []
    logs: list[list[Stay]] = [[] for _ in range(machines)]
    places = [0]
    for number in range(draw(st.integers(1, 5))):
        of = tuple(draw(st.lists(st.integers(0, machines - 1), min_size=1, max_size=4)))
        count = len(of)
        start = draw(st.sampled_from([place for place in places if place % count == 0]))
        rounds = draw(st.one_of(st.none(), st.integers(0, 4)))
        shape: dict[str, Any] = {"batch_size": 2 + number, "world_size": draw(st.integers(1, 2)), "daemon": str(number)}
        stops = set()
        for index, machine in enumerate(of):
            for rank in range(int(shape["world_size"])):
                made = stay(count, index, start // count, rounds, rank=rank, resumed=number > 0, **shape)
                line = made.line()
                for _ in range(min(len(line.plan), 99 if rounds is None else rounds)):
                    stops.add(line.position)
                    line.advance()
                stops.add(line.position if line.epoch_start == 0 else line.epoch_start)
                logs[machine].append(made)
        stop = max(stops) * count
        places = [place for place in places if place <= start] + [p * count for p in sorted(stops) if p * count < N]
        legs.append(Leg(start, min(stop, N), of))
    return legs, logs


@given(runs())
def test_each_machine_proves_its_part_and_names_what_others_can(made: tuple[list[Leg], list[list[Stay]]]) -> None:
    legs, logs = made
    of_place: dict[int, int] = {}
    for leg in legs:
        of_place = {place: who for place, who in of_place.items() if place < leg.start}
        of_place |= {place: leg.machines[place % len(leg.machines)] for place in range(leg.start, leg.stop)}
    straight = all(earlier.stop <= later.start for earlier, later in pairwise(legs))
    for machine, log in enumerate(logs):
        turns = [number for number, leg in enumerate(legs) if machine in leg.machines]
        alone = [len(legs[number].machines) == 1 for number in turns]
        if not log or any(a and b and j > i + 1 for (i, a), (j, b) in pairwise(zip(turns, alone, strict=True))):
            continue  # a job that was all here, and is again, is missed where it was away
        (found,) = accounts(*log)
        always = all(machine in leg.machines for leg in legs)
        assert found.missing == []
        # Others may have gone back, and then saved a place inside of what was a batch here: that counts twice.
        assert found.repeated == [] or not (always or straight)
        assert found.once + found.elsewhere + found.outside + found.untaken + len(found.repeated) == found.samples
        here = [place for place, who in of_place.items() if who == machine]
        assert found.once + len(found.repeated) >= len(here)
        if always:
            assert (found.once, found.outside) == (len(here), 0)
            last = legs[-1]
            left = [p for p in range(last.stop, N) if last.machines[p % len(last.machines)] == machine]
            assert found.untaken == len(left)
