"""What does not fit is refused with four facts: asked, free, which limit, which knob."""

from __future__ import annotations

import pytest

from prepserver.memory import budget
from prepserver.memory.budget import check_fits, machine_free_bytes
from prepserver.memory.cgroups import MemoryLimit
from prepserver.memory.errors import MemoryShort

MIB = 1 << 20


def test_a_ring_within_budget_and_machine_fits() -> None:
    free, _ = machine_free_bytes()
    assert free > MIB
    check_fits(MIB, 3 * MIB, 4 * MIB)


def test_a_ring_beyond_the_budget_is_refused_with_the_knob() -> None:
    """The error names what was asked for, what is free, and the limit."""
    with pytest.raises(MemoryShort) as e:
        check_fits(3 * MIB, 8 * MIB, 10 * MIB)
    assert (e.value.asked_bytes, e.value.free_bytes) == (3 * MIB, 2 * MIB)
    for said in (
        "a ring of 3.0 MiB was asked for",
        "2.0 MiB are free",
        "budget for rings is 10 MiB",
        "--memory",
        "batch_size",
    ):
        assert said in str(e.value)


def test_a_small_ring_is_not_said_to_have_no_bytes() -> None:
    with pytest.raises(MemoryShort, match=r"a ring of 0\.4 MiB was asked for and 0\.2 MiB are free"):
        check_fits(MIB * 2 // 5, 10 * MIB - MIB // 5, 10 * MIB)


def test_a_budget_that_is_overdrawn_has_nothing_free() -> None:
    with pytest.raises(MemoryShort, match=r" 0\.0 MiB are free"):
        check_fits(MIB, 12 * MIB, 10 * MIB)


def test_a_ring_beyond_the_machine_names_the_machines_limit() -> None:
    with pytest.raises(MemoryShort) as e:
        check_fits(1 << 50, 0, 1 << 51)
    limit = machine_free_bytes()[1]
    assert "/proc/meminfo" in limit or "memory.max" in limit
    assert limit in str(e.value)
    assert e.value.asked_bytes == 1 << 50
    assert e.value.free_bytes < 1 << 50


def test_the_tightest_cgroup_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [MemoryLimit(600 * MIB, "inner", 0), MemoryLimit(524 * MIB, "outer", 0), MemoryLimit(1 << 50, "root", 0)]
    monkeypatch.setattr(budget, "memory_limits", lambda: limits)
    assert machine_free_bytes() == (268 * MIB, "outer")


def test_a_full_cgroup_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "memory_limits", lambda: [MemoryLimit(MIB, "full", 0)])
    assert machine_free_bytes() == (0, "full")
