"""Limits on memory and CPU time are found under both versions of cgroups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prepserver.memory import cgroups
from tests.support.waiting import PATIENCE_S

MIB = 1 << 20

Plant = Callable[[str, dict[str, str]], None]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Makes the files of cgroups below a root of the test's own, and says which of them this process is in."""

    def make(memberships: str, files: dict[str, str]) -> None:
        (tmp_path / "self").write_text(memberships)
        for name, text in files.items():
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    monkeypatch.setattr(cgroups, "_SELF", tmp_path / "self")
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path / "root")
    return make


def _left() -> list[int]:
    return [limit.left_bytes // MIB for limit in cgroups.memory_limits()]


def test_version_2_counts_every_parent_and_no_page_cache(plant: Plant, tmp_path: Path) -> None:
    plant(
        "0::/outer/inner\n",
        {
            "outer/memory.max": f"{1024 * MIB}\n",
            "outer/memory.current": f"{600 * MIB}\n",
            "outer/memory.stat": f"anon 5\ninactive_file {100 * MIB}\n",
            "outer/inner/memory.max": "max\n",
            "outer/inner/memory.current": "5\n",
        },
    )
    (limit,) = cgroups.memory_limits()
    assert limit.left_bytes == 524 * MIB
    assert limit.text == f"{tmp_path}/root/outer/memory.max is 1024 MiB (systemd: MemoryMax=, docker: --memory)"


def test_version_1_memory_is_read_from_its_own_tree(plant: Plant) -> None:
    plant(
        "4:memory:/job\n3:cpuset:/\n0::/\n",
        {
            "memory/job/memory.limit_in_bytes": f"{512 * MIB}\n",
            "memory/job/memory.usage_in_bytes": f"{300 * MIB}\n",
            "memory/job/memory.stat": f"inactive_file 1\ntotal_inactive_file {50 * MIB}\n",
        },
    )
    assert _left() == [262]


def test_a_container_without_its_own_path_reads_the_mount(plant: Plant) -> None:
    plant(
        "4:memory:/docker/0123\n",
        {"memory/memory.limit_in_bytes": f"{64 * MIB}\n", "memory/memory.usage_in_bytes": "0\n"},
    )
    assert _left() == [64]


@pytest.mark.parametrize(
    ("memberships", "files", "cpus"),
    [
        ("0::/a/b\n", {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "nonsense\n"}, None),
        (
            "2:cpu,cpuacct:/a\n0::/\n",
            {"cpu/a/cpu.cfs_quota_us": "50000\n", "cpu/a/cpu.cfs_period_us": "100000\n"},
            0.5,
        ),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ("", {}, None),
    ],
)
def test_cpu_quotas_of_both_versions(plant: Plant, memberships: str, files: dict[str, str], cpus: float | None) -> None:
    plant(memberships, files)
    assert cgroups.cpus() == cpus


def test_a_process_in_a_real_cgroup_finds_its_limit(tmp_path: Path) -> None:
    version_1 = Path("/sys/fs/cgroup/memory")
    parent, limit = (version_1, "memory.limit_in_bytes") if version_1.is_dir() else (version_1.parent, "memory.max")
    group = parent / f"prepserver-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(512 * MIB))
    except OSError as e:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no cgroup with a memory limit can be made here: {e}")
    script = (
        f"import os, pathlib; pathlib.Path({str(group / 'cgroup.procs')!r}).write_text(str(os.getpid()))\n"
        "from prepserver.memory.budget import machine_free_bytes\n"
        "print(*machine_free_bytes(), sep='|')"
    )
    try:
        said = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE_S
        )
    finally:
        group.rmdir()
    free, text = said.stdout.strip().split("|")
    assert int(free) < 256 * MIB
    assert text.startswith(f"{group}/{limit} is 512 MiB")
