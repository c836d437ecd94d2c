"""A device: memory, a side stream and events. Only :class:`CudaEngine` needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from prepclient.delivery import E, Events
from prepclient.errors import InvalidSpec, PrepClientError
from prepclient.pinning import PinDriver, open_driver

# torch types this module in part only, and another part in each release.
_cuda: Any = torch.cuda


class DeviceUnavailable(PrepClientError, RuntimeError):
    """The requested device is not available; the text says what torch sees."""


class Engine(Events[E], Protocol[E]):
    """A device: memory, and work queued on its two streams."""

    @property
    def device(self) -> torch.device:
        """The device of the user's tensors."""

    def buffer(self, nbytes: int) -> torch.Tensor:
        """Device memory, uint8, that only the copies' stream has touched."""

    def staging(self, nbytes: int) -> torch.Tensor:
        """New page-locked host memory, uint8."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queues a copy of dense host memory into device memory on the copies' stream."""

    def launch(self, work: Callable[[], None]) -> None:
        """Queues work on the consumer's stream."""

    def pin_driver(self) -> PinDriver:
        """The driver that page-locks rings."""

    def retire(self, buffer: torch.Tensor) -> None:
        """Delays the reuse of a buffer's memory until the consumer's queued reads are done; call it before dropping."""


class CudaEngine:
    """An :class:`Engine` on a CUDA device with an index; it decides nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = _cuda.Stream(device)

    @property
    def device(self) -> torch.device:
        """The CUDA device."""
        return self._device

    def buffer(self, nbytes: int) -> torch.Tensor:
        """Allocates in the side stream's pool: a block from the user's pool may still have readers."""
        with _cuda.stream(self._copies):
            return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def staging(self, nbytes: int) -> torch.Tensor:
        """Allocates by torch's own caching host allocator."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """One cudaMemcpyAsync; from pageable memory the driver stages it first and the host waits."""
        with _cuda.stream(self._copies):
            target.copy_(source, non_blocking=True)

    def launch(self, work: Callable[[], None]) -> None:
        """Runs `work`: kernels are asynchronous on the current stream of the tensors' device."""
        work()

    def pin_driver(self) -> PinDriver:
        """The driver of libcuda, or the runtime's without libcuda."""
        return open_driver(self._device)

    def retire(self, buffer: torch.Tensor) -> None:
        """Tells the caching allocator that the current stream reads the block, for when it is freed."""
        buffer.record_stream(_cuda.current_stream(self._device))

    def mark_copies(self) -> Any:
        """Records a fresh event on the side stream."""
        return self._mark(self._copies)

    def mark_consumer(self) -> Any:
        """Records a fresh event on the stream that is current for the calling thread."""
        return self._mark(_cuda.current_stream(self._device))

    def _mark(self, stream: Any) -> Any:
        # Blocking: a waiting host sleeps, because the workers need the cores.
        event = _cuda.Event(enable_timing=True, blocking=True)
        event.record(stream)
        return event

    def copies_wait(self, event: Any) -> None:
        """Queues the wait on the side stream."""
        self._copies.wait_event(event)

    def consumer_waits(self, event: Any) -> None:
        """Queues the wait on the current stream."""
        _cuda.current_stream(self._device).wait_event(event)

    def done(self, event: Any) -> bool:
        """Asks the driver, about a microsecond."""
        return bool(event.query())

    def wait(self, event: Any) -> None:
        """Sleeps until the event has completed, without the interpreter's lock."""
        event.synchronize()

    def elapsed_ns(self, first: Any, second: Any) -> int:
        """Asks the driver."""
        return int(1e6 * first.elapsed_time(second))

    def synchronize(self) -> None:
        """Sleeps until the side stream is empty."""
        self._copies.synchronize()


def check_device(given: torch.device | str | None) -> torch.device:
    """Checks a device without a call to CUDA, so that the process can still fork. None is the CPU.

    Raises:
        InvalidSpec: Not a device.
        DeviceUnavailable: Neither the CPU nor CUDA, or torch was built without CUDA.
    """
    try:
        device = torch.device("cpu" if given is None else given)
    except (RuntimeError, TypeError, ValueError) as e:
        raise InvalidSpec(f"device = {given!r}: {e}", "device") from e
    if device.type not in ("cpu", "cuda"):
        raise DeviceUnavailable(f"device = {str(device)!r}: use 'cpu' or 'cuda[:i]'")
    if device.type == "cuda" and not (torch.version.cuda or getattr(torch.version, "hip", None)):
        why = "was built without CUDA"
        raise DeviceUnavailable(f"device = {str(device)!r}: torch {torch.__version__} {why}; 'cpu' works")
    return device


def cuda_device(device: torch.device | str) -> torch.device:
    """A CUDA device with its index, initialised; ``"cuda"`` is the current one.

    Raises:
        DeviceUnavailable: torch was built without CUDA, sees no GPU, or has no GPU of that index.
    """
    wanted = check_device(device)
    if wanted.type != "cuda":
        raise DeviceUnavailable(f"device = {str(wanted)!r}: use 'cuda[:i]'")
    if not _cuda.is_available():
        why = "sees no GPU (nvidia-smi, CUDA_VISIBLE_DEVICES)"
        raise DeviceUnavailable(f"device = {str(wanted)!r}: torch {torch.__version__} {why}; 'cpu' works")
    _cuda.init()
    index = _cuda.current_device() if wanted.index is None else wanted.index
    if index >= _cuda.device_count():
        raise DeviceUnavailable(f"device = {str(wanted)!r}: torch sees {_cuda.device_count()} GPU(s)")
    return torch.device("cuda", index)
