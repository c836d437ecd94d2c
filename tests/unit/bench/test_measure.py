"""What a job saw, made into figures."""

from __future__ import annotations

from typing import Any

import pytest

from bench.harness.measure import delivered, gap_ms, quantile, steady_per_s, waits_ms

MS = 1_000_000


def record(epochs: int, batches: int, every_ms: int, pause_ms: int) -> dict[str, Any]:
    """A job that gets a batch of 64 every so often, and waits longer for the first of each epoch but the first."""
    asked: list[float] = []
    came: list[float] = []
    begins: list[float] = []
    now = 0
    for epoch in range(epochs):
        if epoch:
            begins.append(len(came))
        for batch in range(batches):
            asked.append(now)
            now += (pause_ms if epoch and not batch else every_ms) * MS
            came.append(now)
    return {"asked_ns": asked, "came_ns": came, "images": [64] * len(came), "epoch_begins": begins}


@pytest.mark.parametrize("pause_ms", [10, 90, 2000])
def test_the_steady_rate_ignores_waits_between_epochs(pause_ms: int) -> None:
    seen = record(4, 50, 10, pause_ms)
    assert steady_per_s(seen, 0, seen["came_ns"][-1]) == pytest.approx(6400)


def test_the_steady_rate_takes_batches_at_its_edges_in_part() -> None:
    """A batch that crosses an edge of the window counts in proportion."""
    seen = record(1, 100, 10, 10)
    assert steady_per_s(seen, 103 * MS, 208 * MS) == pytest.approx(6400)
    assert delivered(seen, 103 * MS, 208 * MS) == pytest.approx(64 * 10.5)


def test_a_window_without_a_batch_has_no_rate() -> None:
    seen = record(1, 3, 10, 10)
    assert steady_per_s(seen, 100 * MS, 200 * MS) == 0.0


def test_the_gap_is_what_an_epochs_first_batch_takes_longer() -> None:
    assert gap_ms([record(4, 50, 10, 90)]) == pytest.approx(80)
    assert gap_ms([record(1, 50, 10, 90)]) is None


def test_waits_are_those_of_the_window_in_ascending_order() -> None:
    found = waits_ms([record(2, 20, 10, 90), record(1, 20, 30, 30)], 0, 300 * MS)
    assert found == sorted(found)
    assert found.count(30.0) == 10
    assert found.count(90.0) == 1
    assert quantile(found, 0.99) == 90.0
    assert quantile(found, 0.5) == 10.0
    assert quantile([], 0.5) is None
