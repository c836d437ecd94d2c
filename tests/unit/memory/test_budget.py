"""What does not fit is refused with four facts: asked, free, which limit, which knob."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from prepserver.memory import budget
from prepserver.memory.budget import check_fits, machine_free_bytes
from prepserver.memory.errors import MemoryShort

MIB = 1 << 20


def test_a_ring_within_budget_and_machine_fits() -> None:
    free, _ = machine_free_bytes()
    assert free > MIB
    check_fits(MIB, 3 * MIB, 4 * MIB)


def test_a_ring_beyond_the_budget_is_refused_with_asked_free_limit_and_knob() -> None:
    with pytest.raises(MemoryShort) as e:
        check_fits(3 * MIB, 8 * MIB, 10 * MIB)
    assert (e.value.asked_bytes, e.value.free_bytes) == (3 * MIB, 2 * MIB)
    for said in (
        "a ring of 3 MiB was asked for",
        "2 MiB are free",
        "budget for rings is 10 MiB",
        "--memory",
        "prefetch",
    ):
        assert said in str(e.value)


def test_a_budget_that_is_overdrawn_has_nothing_free() -> None:
    with pytest.raises(MemoryShort, match="0 MiB are free"):
        check_fits(MIB, 12 * MIB, 10 * MIB)


def test_a_ring_beyond_the_machine_names_the_limit_of_the_machine() -> None:
    with pytest.raises(MemoryShort) as e:
        check_fits(1 << 50, 0, 1 << 51)
    limit = machine_free_bytes()[1]
    assert "/proc/meminfo" in limit or "memory.max" in limit
    assert e.value.limit == limit
    assert e.value.asked_bytes == 1 << 50
    assert e.value.free_bytes < 1 << 50


def _group(path: Path, most: str, now: int, inactive: int) -> Path:
    path.mkdir()
    (path / "memory.max").write_text(f"{most}\n")
    (path / "memory.current").write_text(f"{now}\n")
    (path / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\n")
    return path


def test_the_tightest_cgroup_counts_and_its_page_cache_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = _group(tmp_path / "outer", str(1024 * MIB), 600 * MIB, 100 * MIB)
    inner = _group(tmp_path / "inner", "max", 10 * MIB, 0)
    missing = tmp_path / "missing"
    monkeypatch.setattr(budget, "_cgroups", lambda: [missing, inner, outer])
    monkeypatch.setattr(budget, "_mem_available", lambda: 64 << 30)
    free, limit = machine_free_bytes()
    assert free == (1024 - 600 + 100 - 256) * MIB
    assert limit == f"{outer}/memory.max is 1024 MiB (systemd: MemoryMax=, docker: --memory)"


def test_a_full_cgroup_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_cgroups", lambda: [_group(tmp_path / "g", str(100 * MIB), 99 * MIB, 0)])
    assert machine_free_bytes()[0] == 0


def test_the_cgroups_of_this_process_go_up_to_the_root() -> None:
    groups = budget._cgroups()
    assert all(p.is_relative_to("/sys/fs/cgroup") for p in groups)
    assert all(a.parent == b for a, b in itertools.pairwise(groups))
