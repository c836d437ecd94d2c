"""What the daemon reads of GPUs that do not answer everything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from prepserver.daemon.gpus import Gpus
from tests.support.waiting import wait_until


def unsupported(*_: Any) -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_a_gpu_without_memory_of_its_own_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GB10 shares the machine's memory, and NVML does not report it."""
    for name in ("PowerUsage", "PcieThroughput", "MemoryInfo"):
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", unsupported)
    answers: dict[str, Any] = {
        "Init": None,
        "DeviceGetCount": 1,
        "DeviceGetHandleByIndex": 0,
        "DeviceGetName": "NVIDIA GB10",
    }
    answers |= {"DeviceGetUtilizationRates": SimpleNamespace(gpu=7), "DeviceGetComputeRunningProcesses": []}
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, f"nvml{name}", lambda *_, answer=answer: answer)
    gpus = Gpus()
    (gpu,) = wait_until(lambda: gpus.last) or [{}]
    gpus.close()
    assert gpu == {
        "index": 0, "name": "NVIDIA GB10", "utilisation_percent": 7, "memory_used_bytes": None,
        "memory_total_bytes": None, "power_w": None, "pcie_bytes_per_s": None, "pids": [],
    }  # fmt: skip
