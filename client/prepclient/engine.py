"""A device: its memory, a side stream and events. Only :class:`CudaEngine` needs a GPU."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol

import torch

from prepclient.delivery import E, Events
from prepclient.errors import InvalidSpec, PrepClientError
from prepclient.pinning import PinDriver, open_driver

# torch.cuda has type hints in parts only, which differ between releases.
_cuda: Any = torch.cuda


class DeviceUnavailable(PrepClientError, RuntimeError):
    """The device asked for is not available; the message says what torch sees."""


class Engine(Events[E], Protocol[E]):
    """A device: memory, and work queued on its two streams."""

    @property
    def device(self) -> torch.device:
        """The device of the user's tensors."""

    def buffer(self, nbytes: int) -> torch.Tensor:
        """Device memory, uint8, that no stream but the copy stream has pending work on."""

    def staging(self, nbytes: int) -> torch.Tensor:
        """New page-locked host memory, uint8."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queues a copy of contiguous host memory into device memory on the copy stream."""

    def launch(self, work: Callable[[], None]) -> None:
        """Queues work on the consumer's stream."""

    def pin_driver(self) -> PinDriver:
        """The driver that page-locks rings."""

    def retire(self, buffer: torch.Tensor) -> None:
        """Delays the reuse of a buffer's memory, once it is dropped, until the consumer's reads are done."""


_idle: defaultdict[torch.device, list[Any]] = defaultdict(list)
"""Side streams of engines that are gone. torch keeps freed memory for the stream that allocated it, so an engine with
a new stream would take its buffers' memory from the device once more."""


class CudaEngine:
    """The :class:`Engine` of a CUDA device, given with its index. It makes no decisions."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        idle = _idle[device]
        try:
            self._copies = idle.pop()
        except IndexError:
            self._copies = _cuda.Stream(device)
        weakref.finalize(self, idle.append, self._copies).atexit = False

    def buffer(self, nbytes: int) -> torch.Tensor:
        """Allocates from the side stream's pool: on a block of another stream's pool work may still be pending."""
        with _cuda.stream(self._copies):
            return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def staging(self, nbytes: int) -> torch.Tensor:
        """Allocates from torch's caching host allocator."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """One cudaMemcpyAsync; from pageable memory the driver stages the bytes, and the host waits for that."""
        with _cuda.stream(self._copies):
            target.copy_(source, non_blocking=True)

    def launch(self, work: Callable[[], None]) -> None:
        """Runs `work`: its kernels go to the current stream of the tensors' device."""
        work()

    def pin_driver(self) -> PinDriver:
        """See `open_driver`."""
        return open_driver(self.device)

    def retire(self, buffer: torch.Tensor) -> None:
        """Tells the caching allocator that the current stream reads the block, too."""
        buffer.record_stream(_cuda.current_stream(self.device))

    def mark_copies(self) -> Any:
        """Records a new event on the side stream."""
        return self._mark(self._copies)

    def mark_consumer(self) -> Any:
        """Records a new event on the calling thread's current stream."""
        return self._mark(_cuda.current_stream(self.device))

    def _mark(self, stream: Any) -> Any:
        # blocking=True: a waiting host sleeps instead of spinning, because the workers need the cores.
        event = _cuda.Event(enable_timing=True, blocking=True)
        event.record(stream)
        return event

    def copies_wait(self, event: Any) -> None:
        """Makes the side stream wait."""
        self._copies.wait_event(event)

    def consumer_waits(self, event: Any) -> None:
        """Makes the current stream wait."""
        _cuda.current_stream(self.device).wait_event(event)

    def done(self, event: Any) -> bool:
        """Asks the driver, in about a microsecond."""
        return bool(event.query())

    def wait(self, event: Any) -> None:
        """Sleeps until the event has completed, without the GIL."""
        event.synchronize()

    def elapsed_ns(self, first: Any, second: Any) -> int:
        """Asks the driver."""
        return int(1e6 * first.elapsed_time(second))

    def synchronize(self) -> None:
        """Sleeps until the side stream is empty."""
        self._copies.synchronize()


def check_device(given: torch.device | str | None) -> torch.device:
    """The device that the user asked for; None is the CPU. It calls no CUDA, so the process can still fork.

    Raises:
        InvalidSpec: `given` names no device.
        DeviceUnavailable: It is neither the CPU nor CUDA, or torch was built without CUDA.
    """
    try:
        device = torch.device("cpu" if given is None else given)
    except (RuntimeError, TypeError, ValueError) as e:
        raise InvalidSpec(f"device = {given!r}: {e}", "device") from e
    if device.type not in ("cpu", "cuda"):
        raise DeviceUnavailable(f"device = {str(device)!r}: use 'cpu' or 'cuda[:i]'")
    if device.type == "cuda" and not (torch.version.cuda or getattr(torch.version, "hip", None)):
        reason = f"torch {torch.__version__} was built without CUDA; 'cpu' works"
        raise DeviceUnavailable(f"device = {str(device)!r}: {reason}")
    return device


def cuda_device(device: torch.device | str) -> torch.device:
    """An initialised CUDA device with its index, by default the current one; raises `DeviceUnavailable` without it."""
    wanted = check_device(device)
    if wanted.type != "cuda":
        raise DeviceUnavailable(f"device = {str(wanted)!r}: use 'cuda[:i]'")
    if not _cuda.is_available():
        reason = f"torch {torch.__version__} sees no GPU (check nvidia-smi and $CUDA_VISIBLE_DEVICES); 'cpu' works"
        raise DeviceUnavailable(f"device = {str(wanted)!r}: {reason}")
    _cuda.init()
    index = _cuda.current_device() if wanted.index is None else wanted.index
    if index >= _cuda.device_count():
        raise DeviceUnavailable(f"device = {str(wanted)!r}: torch sees {_cuda.device_count()} GPU(s)")
    return torch.device("cuda", index)
