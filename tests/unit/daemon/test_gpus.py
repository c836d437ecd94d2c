"""What the daemon reads of GPUs that do not answer everything."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from prepserver.daemon import gpus as daemon_gpus
from prepserver.daemon.gpus import Gpus
from tests.support.waiting import wait_until


def unsupported(*_: Any) -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_a_gpu_without_memory_of_its_own_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GB10 shares the machine's memory, and NVML does not report it."""
    replace(monkeypatch)
    for name in ("PowerUsage", "PcieThroughput", "MemoryInfo"):
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", unsupported)
    gpus = Gpus()
    found = wait_until(lambda: gpus.last)
    gpus.close()
    assert found == [{
        "index": 0, "name": "NVIDIA GB10", "utilisation_percent": 7, "memory_used_bytes": None,
        "memory_total_bytes": None, "power_w": None, "pcie_bytes_per_s": None, "pids": [],
    }]  # fmt: skip


def test_pcie_is_a_mean_of_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading takes 20 ms: between two batches it finds nothing."""
    replace(monkeypatch)
    readings = itertools.cycle([1024, 0, 0, 0])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPcieThroughput", lambda *_: next(readings))
    monkeypatch.setattr(daemon_gpus, "_EVERY_S", 0.001)
    gpus = Gpus()
    wait_until(lambda: gpus.last and 0 < gpus.last[0]["pcie_bytes_per_s"] < 512 << 10)
    gpus.close()


def replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU that reports only its use."""
    answers: dict[str, Any] = {"Init": None, "DeviceGetCount": 1, "DeviceGetHandleByIndex": 0}
    answers |= {
        "DeviceGetName": "NVIDIA GB10",
        "DeviceGetUtilizationRates": SimpleNamespace(gpu=7),
        "DeviceGetComputeRunningProcesses": [],
        "DeviceGetMemoryInfo": SimpleNamespace(used=1, total=2),
        "DeviceGetPowerUsage": 1000,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, f"nvml{name}", lambda *_, answer=answer: answer)
