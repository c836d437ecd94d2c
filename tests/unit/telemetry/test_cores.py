"""What is known of cores: how many, how busy, and how long a thread went without one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prepserver.telemetry import cores


def test_work_is_seen_of_the_thread_and_of_the_machine() -> None:
    before, machine = cores.ran_and_waited_s(os.getpid()), cores.busy_s()
    began_s = time.thread_time()
    while time.thread_time() < began_s + 0.1:
        pass
    after = cores.ran_and_waited_s(os.getpid())
    assert before is not None
    assert after is not None
    assert after[0] >= before[0] + 0.05  # the kernel counts at ticks, of up to 10 ms
    assert after[1] >= before[1]
    assert cores.busy_s() > machine


def test_of_a_process_that_is_gone_nothing_is_known() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as gone:
        gone.wait()
    assert cores.ran_and_waited_s(gone.pid) is None


def test_where_the_kernel_hides_its_counts_nothing_is_busy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cores, "_STAT", tmp_path / "stat")
    assert cores.busy_s() == 0.0
