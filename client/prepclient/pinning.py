"""Page-locks a ring, so that copies to the GPU run at the full rate of the bus.

A background thread of the client locks the whole ring once; the daemon never makes a CUDA context. If locking fails,
copies work from pageable memory, seven to nine times slower on an H100, and one warning says why.

It calls the driver's API through ctypes: a failing ``cudaHostRegister`` of the runtime leaves an error in the thread,
which torch later reports for another operation (vllm-project/vllm#51081).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeAlias

import torch

PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: locked for all contexts, such as that of a second GPU
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
CAPTURE_ERRORS = range(900, 909)  # CUDA_ERROR_STREAM_CAPTURE_*; driver and runtime have the same numbers

_CAPTURE_TRIES = 100
_CAPTURE_PAUSE_S = 0.05
_PAGES_PATIENCE_S = 5.0  # longest wait for another page to be present
_PAGES_POLL_S = 0.02

_still_locked: list[object] = []
"""Mappings that could not be unlocked. They stay mapped, because the driver may still use their addresses."""

PinState: TypeAlias = Literal["pending", "pinned", "pageable", "closed"]


class PinningWarning(UserWarning):
    """The ring could not be page-locked: copies to the GPU work, but are several times slower."""


class PinDriver(Protocol):
    """A driver's calls for page-locking. Codes are CUDA's; 0 is success."""

    def register(self, address: int, nbytes: int) -> int:
        """Locks a range of this process's memory; returns a code."""

    def unregister(self, address: int) -> int:
        """Unlocks the range that was locked at this address; returns a code."""

    def describe(self, code: int) -> str:
        """A code in words."""


class LibCuda:
    """The driver API of a device, its `ordinal` after CUDA_VISIBLE_DEVICES; raises `OSError` without libcuda.so.1."""

    def __init__(self, ordinal: int, library: Any = None) -> None:
        self._library = ctypes.CDLL("libcuda.so.1") if library is None else library
        self._ordinal = ordinal
        pointer, handle = ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
        try:
            self._get_device = self._function("cuDeviceGet", ctypes.POINTER(ctypes.c_int), ctypes.c_int)
            self._retain = self._function("cuDevicePrimaryCtxRetain", pointer, ctypes.c_int)
            self._push = self._function("cuCtxPushCurrent_v2", handle)
            self._pop = self._function("cuCtxPopCurrent_v2", pointer)
            self._register = self._function("cuMemHostRegister_v2", handle, ctypes.c_size_t, ctypes.c_uint)
            self._unregister = self._function("cuMemHostUnregister", handle)
            self._exchange_mode = self._function("cuThreadExchangeStreamCaptureMode", ctypes.POINTER(ctypes.c_int))
            self._error_string = self._function("cuGetErrorString", ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))
        except AttributeError as error:
            raise OSError(f"libcuda.so.1 lacks a function: {error}") from error
        self._context: int | None = None

    def _function(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._library, name)
        function.argtypes = list(arguments)
        function.restype = ctypes.c_int
        return function

    @contextmanager
    def _current_context(self) -> Iterator[int]:
        """Makes the device's primary context, which is torch's, current in this thread; yields 0 or an error's code.

        A thread that has not called the runtime has no context. It is pushed and popped, because setting it would
        change the user's current device. The retain is never undone, because the last release would destroy torch's
        context.

        Meanwhile the capture mode of this thread is relaxed: otherwise its calls could fail, and with them a graph
        capture of another thread.
        """
        code = 0
        if self._context is None:
            device, context = ctypes.c_int(), ctypes.c_void_p()
            code = self._get_device(ctypes.byref(device), self._ordinal)
            code = code or self._retain(ctypes.byref(context), device)
            if code == 0:
                self._context = context.value
        code = code or self._push(self._context)
        mode = ctypes.c_int(RELAXED)
        exchanged = code == 0 and self._exchange_mode(ctypes.byref(mode)) == 0
        try:
            yield code
        finally:
            if exchanged:
                self._exchange_mode(ctypes.byref(mode))
            if code == 0:
                self._pop(ctypes.byref(ctypes.c_void_p()))

    def register(self, address: int, nbytes: int, flags: int = PORTABLE) -> int:
        """Locks a range for all contexts of the process, without holding the GIL."""
        with self._current_context() as code:
            return int(code or self._register(address, nbytes, flags))

    def unregister(self, address: int) -> int:
        """Unlocks the range that was locked at this address."""
        with self._current_context() as code:
            return int(code or self._unregister(address))

    def describe(self, code: int) -> str:
        """The driver's text for a code."""
        text = ctypes.c_char_p()
        if self._error_string(code, ctypes.byref(text)) != 0 or text.value is None:
            return f"code {code}"
        return f"{text.value.decode(errors='replace')} (code {code})"


class _RuntimeBinding:
    """The runtime through torch's binding, where there is no libcuda (ROCm)."""

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        cuda: Any = torch.cuda  # has type hints in parts only
        self._runtime: Any = cuda.cudart()

    def register(self, address: int, nbytes: int) -> int:
        with torch.cuda.device(self._ordinal):
            return int(self._runtime.cudaHostRegister(address, nbytes, PORTABLE))

    def unregister(self, address: int) -> int:
        with torch.cuda.device(self._ordinal):
            return int(self._runtime.cudaHostUnregister(address))

    def describe(self, code: int) -> str:
        return f"code {code}"  # the binding has no texts


def open_driver(device: torch.device) -> PinDriver:
    """The best driver for a device that torch has initialised (see `engine.cuda_device`)."""
    ordinal = torch.cuda.current_device() if device.index is None else device.index
    try:
        return LibCuda(ordinal)
    except OSError:
        return _RuntimeBinding(ordinal)


class HostPin:
    """The page-lock of one whole mapping. `keep`, the owner of the mapping, is kept alive until :meth:`close`.

    The locked range begins with the mapping's first byte: torch looks at the start of a tensor's storage, and takes a
    storage that starts before the range for pageable. Locking waits until `absent_from` (see `MemoryMap`) reports all
    pages present, because the driver faults pages in slowly and meanwhile blocks every process on the machine that
    starts CUDA.

    At the end, also at the interpreter's exit, the owner drains the copies, calls :meth:`close`, drops the tensors and
    unmaps. Memory that cannot be unlocked stays mapped. A forked child never calls the driver, because the lock belongs
    to its parent, and CUDA does not survive a fork.
    """

    def __init__(
        self, address: int, nbytes: int, driver: PinDriver, *, keep: object = None,
        absent_from: Callable[[int], int] | None = None,
    ) -> None:  # fmt: skip
        self._address = address
        self._nbytes = nbytes
        self._driver = driver
        self._keep = keep
        self._absent_from = absent_from
        self._closing = threading.Event()
        self._owner_pid = os.getpid()
        self.state: PinState = "pending"  # then ``pinned`` or ``pageable``, and ``closed`` after :meth:`close`
        self.reason: str | None = None  # why the mapping is pageable; None once the user was warned
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to lock in the background, which takes 0.1 to 0.2 s per GB once pages are present. Idempotent."""
        if self._thread is None:
            # A daemon thread, because the interpreter waits for others before it runs the owner's exit hook.
            self._thread = threading.Thread(target=self._lock, name="prepclient-pin", daemon=True)
            self._thread.start()

    def _lock(self) -> None:
        self._await_pages()
        if self._closing.is_set():
            return
        try:
            code = _call(lambda: self._driver.register(self._address, self._nbytes))
            reason = "" if code == 0 else self._driver.describe(code)
        except (OSError, RuntimeError, ValueError, ctypes.ArgumentError) as error:
            reason = str(error)
        if reason:  # also if other code has locked a part, because nobody knows which one and for how long
            self.reason = f"{self._nbytes / 2**20:.0f} MiB of shared memory could not be page-locked: {reason}"
        self.state = "pageable" if reason else "pinned"

    def _await_pages(self) -> None:
        """Waits until all pages are present, or none has been added for `_PAGES_PATIENCE_S`."""
        present, moved_s = 0, time.monotonic()
        while self._absent_from is not None and (upto := self._absent_from(present)) < self._nbytes:
            now_s = time.monotonic()
            if upto > present:
                present, moved_s = upto, now_s
            if now_s - moved_s > _PAGES_PATIENCE_S or self._closing.wait(_PAGES_POLL_S):
                return

    def _unlock(self) -> bool:
        try:
            return _call(lambda: self._driver.unregister(self._address)) == 0
        except (OSError, RuntimeError):
            return False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits up to `timeout_s` (None: without limit) for the lock; returns whether the mapping is page-locked."""
        if self._thread is not None and self._owner_pid == os.getpid():
            self._thread.join(timeout_s)
        return self.state == "pinned"

    def warn_once(self) -> None:
        """Warns once, in the user's thread, if locking was refused.

        Warns:
            PinningWarning: Locking was refused.
        """
        if self.state == "pageable" and self.reason is not None:
            reason, self.reason = self.reason, None
            frame, level = sys._getframe(), 1  # of this method, and from there up to the training loop
            while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("prepclient."):
                frame, level = frame.f_back, level + 1
            warnings.warn(
                f"{reason}. Batches are copied to the GPU from pageable memory instead, which works but is "
                "several times slower and holds up the calling thread.",
                PinningWarning,
                stacklevel=level,
            )

    def close(self) -> None:
        """Unlocks the mapping; no copy may be under way. Idempotent."""
        if self.state == "closed":
            return
        if os.getpid() != self._owner_pid:
            # The thread does not exist here, so waiting for it could hang.
            self.state = "closed"
            return
        self._closing.set()
        if self.wait() and not self._unlock():
            _still_locked.append(self._keep)
        self._keep = self._absent_from = None
        self.state = "closed"


def _call(call: Callable[[], int]) -> int:
    """Calls a driver, and again while it refuses because a graph is being captured."""
    for _ in range(_CAPTURE_TRIES):
        code = call()
        if code not in CAPTURE_ERRORS:
            break
        time.sleep(_CAPTURE_PAUSE_S)
    return code
