"""Jobs of one speed stay together: minutes of their training, which take no branch that `test_lag.py` does not take."""

from __future__ import annotations

import pytest

from tests.support.timed_world import Timed


@pytest.mark.parametrize("rows_per_s", [200.0, 500.0, 1500.0])
@pytest.mark.parametrize("pipeline", [0, 1])
def test_jobs_of_one_speed_stay_together_after_an_early_start(rows_per_s: float, pipeline: int) -> None:
    """The joiner is ahead by a window from then on, and takes its batches at once: it waits for nobody."""
    world = Timed()
    world.begin(rows_per_s)
    world.go(1000 / rows_per_s)
    world.begin(rows_per_s, pipeline=pipeline)
    assert world.where.into is not None
    world.until_joined()
    world.go(40.0)
    assert not world.parted
    assert len(world.streams) == 1


@pytest.mark.parametrize("began_s", [0.4 + 0.1 * k for k in range(20)])
def test_what_a_job_waited_before_it_came_is_held_against_nobody(began_s: float) -> None:
    """However long it rested: also where it asks for more, or says what it has waited, just when it comes."""
    world = Timed()
    world.begin(1000.0)
    world.go(began_s)
    world.begin(1000.0)
    assert world.where.into is not None
    world.until_joined()
    world.go(10.0)
    assert not world.parted


@pytest.mark.parametrize("pool_rows_per_s", [600.0, 5000.0])
@pytest.mark.parametrize("batches", [(256, 256), (256, 128)])
def test_jobs_of_one_speed_stay_together_from_the_start(pool_rows_per_s: float, batches: tuple[int, int]) -> None:
    world = Timed(pool_rows_per_s)
    for batch in batches:
        world.begin(500.0, batch=batch)
    world.go(60.0)
    assert not world.parted


def test_a_job_that_is_hardly_slower_is_waited_for() -> None:
    world = Timed()
    world.begin(450.0)
    world.begin(500.0)
    world.go(100.0)
    assert not world.parted
