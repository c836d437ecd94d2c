"""Decisions of the pool of workers."""

from __future__ import annotations

from prepserver.daemon.pool import died_young
from prepserver.schedule.records import Suspect


def test_only_workers_that_cannot_work_are_waited_for() -> None:
    """A lane whose ops kill every worker must not keep workers from other jobs."""
    assert died_young(1.0, 0, None)
    assert died_young(1.0, 0, Suspect(5))
    assert not died_young(1.0, 1, None)
    assert not died_young(100.0, 0, None)
    assert not died_young(1.0, 0, Suspect(5, lane=2))
    assert not died_young(1.0, 0, Suspect(None, lane=2))
