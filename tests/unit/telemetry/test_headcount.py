"""How many workers there should be: planted sequences of loads, and any sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from prepserver.telemetry.facts import Facts
from prepserver.telemetry.headcount import CALM_S, GROW_S, SPARE_S, STARVED_S, Headcount, next_headcount
from prepserver.telemetry.rates import WINDOW_S

FED = Facts(
    span_s=10.0, batches=100, images_per_s=1000.0, waiting=0.0, workers=4, workers_busy=0.8, workers_run=0.75,
    cores=8.0, cores_idle=4.0, ring_rows=2048, round_rows=256,
)  # fmt: skip
HUNGRY = replace(FED, waiting=0.5, waits_for={"workers": 1.0}, workers_busy=0.99, workers_run=0.9)


def watched(
    jobs: Callable[[int, float], Sequence[Facts]], start: int, seconds: int, most: int = 8
) -> list[tuple[int, Headcount]]:
    """The changes, with the second of each; `jobs` says what is known with so many workers at that second."""
    now, changes = Headcount(start), []
    for second in range(seconds):
        after = next_headcount(now, jobs(now.workers, second), most, float(second))
        if after.workers != now.workers:
            changes.append((second, after))
        now = after
    return changes


def test_a_waiting_job_and_idle_cores_bring_workers() -> None:
    ((second, now),) = watched(
        lambda n, _: [replace(HUNGRY, workers=n)] if n == 4 else [replace(FED, workers=n)], 4, 60
    )
    assert (second, now.workers) == (GROW_S, 8)
    assert "waits 50 %" in now.why
    assert "4.0 cores are idle" in now.why


def test_half_an_idle_core_is_enough_for_one_more() -> None:
    """A daemon on two cores starts with one worker."""
    two = replace(HUNGRY, workers=1, cores=2.0, cores_idle=0.7)
    assert [now.workers for _, now in watched(lambda _n, _s: [two], 1, 60, most=2)] == [2]


def test_without_idle_cores_or_for_other_reasons_none_come() -> None:
    for job in (
        replace(HUNGRY, cores_idle=0.2),
        replace(HUNGRY, waits_for={"job slow": 5.0}),
        replace(HUNGRY, workers_busy=0.5),
    ):
        assert watched(lambda _n, _s, job=job: [job], 4, 300) == []  # type: ignore[misc]


def test_full_rings_retire_workers_down_to_those_in_use() -> None:
    changes = watched(lambda n, _: [replace(FED, workers=n, workers_busy=min(1.0, 1.3 / n))], 6, 600)
    assert [now.workers for _, now in changes] == [5, 4, 3, 2]
    assert all(b - a >= SPARE_S for (a, _), (b, _) in pairwise(changes))
    assert "all rows are ready" in changes[0][1].why


def test_a_starved_training_process_gets_its_core() -> None:
    changes = watched(lambda n, _: [replace(FED, loop_starved=0.4 if n > 2 else 0.0)], 4, 600)
    assert [now.workers for _, now in changes[:2]] == [3, 2]
    assert changes[0][0] == STARVED_S
    assert "no core 40 %" in changes[0][1].why


def test_a_starved_script_takes_no_workers_from_others_that_wait() -> None:
    """A script at a low priority, or one that keeps all cores busy itself, has no core with one worker either."""
    low = replace(FED, loop_starved=0.9)
    busy = replace(HUNGRY, cores_idle=0.0)
    assert watched(lambda n, _: [replace(low, workers=n), replace(busy, workers=n)], 4, 600) == []
    held = replace(busy, waits_for={"ranks": 1.0})  # would not make use of them
    changes = watched(lambda n, _: [replace(low, workers=n), replace(held, workers=n)], 4, 600)
    assert [now.workers for _, now in changes] == [3, 2, 1]


def test_a_pause_changes_nothing() -> None:
    """An evaluation reads no rows: its workers are idle, and needed at its end."""
    assert watched(lambda _n, _s: [replace(FED, images_per_s=0.0, workers_busy=0.0)], 6, 600) == []
    assert watched(lambda _n, _s: [], 6, 600) == []


def test_a_short_reason_does_not_count() -> None:
    assert watched(lambda n, s: [HUNGRY if s % 3 else FED], 4, 300) == []


def test_fewer_cores_are_a_reason_at_once() -> None:
    assert watched(lambda _n, _s: [FED], 6, 5, most=3)[0][1].workers == 3


def test_between_two_answers_it_settles() -> None:
    """With three workers a job waits; with four its training process starves."""

    def jobs(workers: int, _second: float) -> list[Facts]:
        if workers < 4:
            return [replace(HUNGRY, workers=workers, cores_idle=1.0, waiting=0.06)]
        return [replace(FED, loop_starved=0.4)]

    changes = [second for second, _ in watched(jobs, 4, int(CALM_S))]
    assert 3 <= len(changes) <= 14
    gaps = [b - a for a, b in pairwise(changes)]
    assert gaps[-1] > 8 * gaps[0]


fractions = st.floats(0, 1)
loads = st.lists(
    st.builds(
        Facts, images_per_s=st.sampled_from([0.0, 1000.0]), waiting=fractions, workers=st.integers(1, 16),
        workers_busy=fractions, workers_run=fractions, cores=st.just(8.0), cores_idle=st.floats(0, 8),
        loop_starved=fractions, waits_for=st.sampled_from([{}, {"workers": 1.0}, {"job a": 1.0}]),
    ),
    max_size=3,
)  # fmt: skip


@given(st.lists(st.tuples(loads, st.integers(1, 200)), max_size=30), st.integers(1, 8), st.integers(1, 8))
def test_of_any_loads_the_number_stays_in_its_bounds(
    runs: list[tuple[list[Facts], int]], start: int, most: int
) -> None:
    now, second, changed = Headcount(start), 0, -1000
    for jobs, seconds in runs:
        for _ in range(seconds):
            after = next_headcount(now, jobs, most, float(second))
            assert 1 <= after.workers <= max(most, now.workers)
            if after.workers != now.workers:
                assert second - changed >= WINDOW_S
                assert after.why
                changed = second
            now, second = after, second + 1
