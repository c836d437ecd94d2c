"""The machine's GPUs as NVML reports them. A thread asks, because a driver may be slow."""

from __future__ import annotations

import statistics
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import pynvml

_EVERY_S = 2.0
_PCIE_READINGS = 15  # NVML looks for 20 ms, and a batch comes in a burst of 1 ms: one reading says little
_RETRY_S = 60.0  # a driver may be installed, or come back, while the daemon runs


class Gpus:
    """Keeps the last reading.

    Attributes:
        last: A list with a map for each GPU (``index``, ``name``, ``utilisation_percent``, ``memory_used_bytes``,
            ``memory_total_bytes``, ``power_w``, ``pcie_bytes_per_s``, the mean of the last half minute, ``pids`` that
            compute on it), or None without a driver.
    """

    def __init__(self) -> None:
        self.last: list[dict[str, Any]] | None = None
        self._pcie: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=_PCIE_READINGS))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="nvml", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops asking."""
        self._stop.set()
        self._thread.join(timeout=1.0)

    def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError:
                self._stop.wait(_RETRY_S)
                continue
            try:
                while not self._stop.wait(_EVERY_S if self.last is not None else 0.0):
                    self.last = [self._read(i) for i in range(pynvml.nvmlDeviceGetCount())]
            except pynvml.NVMLError:
                self.last = None
                self._pcie.clear()
                self._stop.wait(_RETRY_S)

    def _read(self, index: int) -> dict[str, Any]:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = or_none(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
        received = or_none(lambda: pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES))
        if received is not None:
            self._pcie[index].append(1024 * received)
        return {
            "index": index,
            "power_w": or_none(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            "pcie_bytes_per_s": None if received is None else statistics.fmean(self._pcie[index]),
            "pids": or_none(lambda: [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]) or [],
            "name": pynvml.nvmlDeviceGetName(handle),
            "utilisation_percent": or_none(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            "memory_used_bytes": memory and memory.used,
            "memory_total_bytes": memory and memory.total,
        }


def or_none(ask: Callable[[], Any]) -> Any:
    """The answer, or None if a device has none: a MIG slice does not report how busy it is, nor a GB10 its memory."""
    try:
        return ask()
    except pynvml.NVMLError:
        return None
