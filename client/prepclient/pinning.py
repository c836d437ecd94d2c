"""Page-locking of shared memory that somebody else allocated, so that copies run at the bus's full rate.

A ring is locked once, whole, in the background, in the client's process (the daemon never makes a CUDA
context). When it cannot be done the pageable path works as well, three to five times slower; the reason is
said once.

The driver's own API is used through ctypes and not the runtime's ``cudaHostRegister``: a call of the runtime
that fails leaves an error behind in the thread, which torch reports later on an innocent operation
(vllm-project/vllm#51081).
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypeAlias

import torch

PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: locked for every context, so also for a second GPU
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
CAPTURE_ERRORS = range(900, 909)  # CUDA_ERROR_STREAM_CAPTURE_*, the same numbers in driver and runtime

_CAPTURE_TRIES = 100
_CAPTURE_PAUSE_S = 0.05
_PAGES_PATIENCE_S = 5.0  # how long to wait for pages that nobody touches
_PAGES_POLL_S = 0.02

_still_locked: list[object] = []
"""Mappings that could not be unlocked: the driver may still write to or read from their addresses."""

PinState: TypeAlias = Literal["pending", "pinned", "pageable", "closed"]


class PinningWarning(UserWarning):
    """The ring could not be page-locked: copies to the GPU work, but slower."""


class PinDriver(Protocol):
    """What page-locking needs of a driver. Codes are CUDA's, 0 is success."""

    def register(self, address: int, nbytes: int) -> int:
        """Locks a range of this process's memory."""

    def unregister(self, address: int) -> int:
        """Unlocks the range that was locked at this address."""

    def describe(self, code: int) -> str:
        """A code in words."""


class LibCuda:
    """The driver API of one device, by ctypes.

    Args:
        ordinal: The device, as torch counts (both count after CUDA_VISIBLE_DEVICES).
        library: A loaded libcuda; opened by its soname by default.

    Raises:
        OSError: There is no libcuda.so.1, or it lacks a function.
    """

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
        """Makes the device's primary context (torch's) current in this thread, and puts back what was.

        A thread that has not yet called the runtime has none. Pushed and popped, because setting it would
        change the user's current device. The retain is never undone: torch keeps the context for the life
        of the process anyway, and the last release would destroy it.

        Meanwhile this thread may do what a capture of a graph in another one forbids by default: that would fail
        here, and end the capture there.
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
        """Locks a range, for every context of the process. It runs without the interpreter's lock."""
        with self._current_context() as code:
            return int(code or self._register(address, nbytes, flags))

    def unregister(self, address: int) -> int:
        """Unlocks the range that was locked at this address."""
        with self._current_context() as code:
            return int(code or self._unregister(address))

    def describe(self, code: int) -> str:
        """The driver's words for a code."""
        text = ctypes.c_char_p()
        if self._error_string(code, ctypes.byref(text)) != 0 or text.value is None:
            return f"code {code}"
        return f"{text.value.decode(errors='replace')} (code {code})"


class RuntimeBinding:
    """The runtime as torch binds it, for a torch without libcuda (ROCm).

    Args:
        ordinal: The device, as torch counts.
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        cuda: Any = torch.cuda  # typed in part only
        self._runtime: Any = cuda.cudart()

    def register(self, address: int, nbytes: int) -> int:
        """Locks a range, for every context of the process."""
        with torch.cuda.device(self._ordinal):
            return int(self._runtime.cudaHostRegister(address, nbytes, PORTABLE))

    def unregister(self, address: int) -> int:
        """Unlocks the range that was locked at this address."""
        with torch.cuda.device(self._ordinal):
            return int(self._runtime.cudaHostUnregister(address))

    def describe(self, code: int) -> str:
        """The bare code: the binding has no words for it."""
        return f"code {code}"


def open_driver(device: torch.device) -> PinDriver:
    """The best driver there is for a device that torch has initialised (see `device.cuda_device`)."""
    ordinal = torch.cuda.current_device() if device.index is None else device.index
    try:
        return LibCuda(ordinal)
    except OSError:
        return RuntimeBinding(ordinal)


class HostPin:
    """The page-lock of one whole mapping.

    Locking must begin at the mapping's first byte: torch asks about a tensor's storage, not its data, so a
    storage that starts before the locked range counts as pageable.

    The owner's order at the end: drain the copies, :meth:`close`, drop the tensors, unmap. The owner sees to it at
    the interpreter's exit, too. What cannot be unlocked stays mapped for ever. A forked child never touches the
    driver: the lock is its parent's, and CUDA does not survive a fork.

    Args:
        address: First byte of the mapping.
        nbytes: Its size; 0 is locked by doing nothing.
        driver: Does the locking.
        keep: Whatever the mapping ends with: it is kept alive until :meth:`close`.
        cuts: Offsets at which another call of the driver goes on, on pages. No copy may straddle one.
        absent_from: See `Mapping.absent_from`: locking begins when all pages are there, because the driver makes
            missing ones slowly and holds up every other process on the machine that starts CUDA.
    """

    def __init__(
        self,
        address: int,
        nbytes: int,
        driver: PinDriver,
        *,
        keep: object = None,
        cuts: Sequence[int] = (),
        absent_from: Callable[[int], int] | None = None,
    ) -> None:
        ends = [*cuts, nbytes]
        self._chunks = [(address + begin, end - begin) for begin, end in zip([0, *cuts], ends, strict=True) if nbytes]
        self._nbytes = nbytes
        self._driver = driver
        self._keep = keep
        self._absent_from = absent_from
        self._closing = threading.Event()
        self._owner_pid = os.getpid()
        self._locked: list[int] = []
        self._state: PinState = "pending"
        self._reason: str | None = None
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> PinState:
        """``pending`` until the attempt ends as ``pinned`` or ``pageable``; ``closed`` after close."""
        return self._state

    @property
    def reason(self) -> str | None:
        """Why the mapping is pageable, in words."""
        return self._reason

    def start(self) -> None:
        """Begins locking in the background (about 0.1 s per GB of memory that is already there). Idempotent."""
        if self._thread is None:
            # A daemon, so that an exit runs the owner's hook (which waits for it) instead of waiting here first.
            self._thread = threading.Thread(target=self._lock, name="prepclient-pin", daemon=True)
            self._thread.start()

    def _lock(self) -> None:
        self._await_pages()
        for address, nbytes in self._chunks:
            if self._closing.is_set():
                return
            try:
                code = _call(lambda: self._driver.register(address, nbytes))  # noqa: B023 - called at once
                reason = "" if code == 0 else self._driver.describe(code)
            except (OSError, RuntimeError, ValueError, ctypes.ArgumentError) as error:
                reason = str(error)
            if reason:
                # Also if somebody else has locked some of it: nobody knows how much, and for how long. What was
                # locked before stays so, because copies may be reading it.
                self._reason = f"{self._nbytes / 2**20:.0f} MiB of shared memory could not be page-locked: {reason}"
                self._state = "pageable"
                return
            self._locked.append(address)
        self._state = "pinned"

    def _await_pages(self) -> None:
        """Waits for whoever faults the memory in, as long as that goes on."""
        present, moved_s = 0, time.monotonic()
        while self._absent_from is not None and (upto := self._absent_from(present)) < self._nbytes:
            now_s = time.monotonic()
            if upto > present:
                present, moved_s = upto, now_s
            if now_s - moved_s > _PAGES_PATIENCE_S or self._closing.wait(_PAGES_POLL_S):
                return

    def _unlock(self) -> bool:
        """Whether nothing of it is locked any more."""
        unlocked = True
        for address in self._locked:
            try:
                code = _call(lambda: self._driver.unregister(address))  # noqa: B023 - called at once
            except (OSError, RuntimeError):
                code = -1
            unlocked &= code == 0
        self._locked.clear()
        return unlocked

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until locking was done or refused.

        Args:
            timeout_s: Longest wait; None waits for the driver.

        Returns:
            Whether the mapping is page-locked.
        """
        if self._thread is not None and self._owner_pid == os.getpid():
            self._thread.join(timeout_s)
        return self._state == "pinned"

    def warn_once(self) -> None:
        """Says, the first time after a refusal, why copies are slower. To be called by the user's thread.

        Warns:
            PinningWarning: Locking was refused.
        """
        if self._state == "pageable" and self._reason is not None:
            reason, self._reason = self._reason, None
            warnings.warn(
                f"{reason}. Batches are copied to the GPU from pageable memory instead, which works but is "
                "several times slower and holds up the calling thread.",
                PinningWarning,
                stacklevel=3,
            )

    def close(self) -> None:
        """Unlocks what was locked here. No copy may be under way. Calling it again does nothing."""
        if self._state == "closed":
            return
        if os.getpid() != self._owner_pid:
            # Not even the thread is waited for: it was not copied, and a lock that it held stays held.
            self._state = "closed"
            return
        self._closing.set()
        self.wait()
        if not self._unlock():
            _still_locked.append(self._keep)
        self._keep = self._absent_from = None
        self._state = "closed"


def _call(call: Callable[[], int]) -> int:
    """Calls a driver, again while it refuses because a graph is captured."""
    for _ in range(_CAPTURE_TRIES):
        code = call()
        if code not in CAPTURE_ERRORS:
            break
        time.sleep(_CAPTURE_PAUSE_S)
    return code
