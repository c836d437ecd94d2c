"""Page-locking of shared memory that somebody else allocated, so that copies run at the bus's full rate.

A ring is locked once, whole, in the background, in the client's process (the daemon never makes a CUDA
context). When it cannot be done the pageable path works as well, three to five times slower; the reason is
said once.

The driver's own API is used through ctypes and not the runtime's ``cudaHostRegister``: a call of the runtime
that fails leaves an error behind in the thread, which torch reports later on an innocent operation
(vllm-project/vllm#51081).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, Protocol, TypeAlias

import torch

PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: locked for every context, so also for a second GPU
ALREADY_REGISTERED = 712  # CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, the same number in driver and runtime

# One call for 512 GiB or more fails in the driver (LMCache#5177: an allocation sized by an int).
CHUNK_BYTES = 64 << 30

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
        """
        code = 0
        if self._context is None:
            device, context = ctypes.c_int(), ctypes.c_void_p()
            code = self._get_device(ctypes.byref(device), self._ordinal)
            code = code or self._retain(ctypes.byref(context), device)
            if code == 0:
                self._context = context.value
        code = code or self._push(self._context)
        try:
            yield code
        finally:
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

    The owner's order at the end: drain the copies, :meth:`close`, drop the tensors, unmap. An exit of the
    interpreter closes too. A forked child never touches the driver: the lock is its parent's, and CUDA does
    not survive a fork.

    Args:
        address: First byte of the mapping.
        nbytes: Its size; 0 is locked by doing nothing.
        driver: Does the locking.
        keep: Whatever the mapping ends with: it is kept alive until :meth:`close`.
        chunk_bytes: Most that one call locks.
    """

    def __init__(
        self, address: int, nbytes: int, driver: PinDriver, *, keep: object = None, chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        self._chunks = [(address + begin, min(chunk_bytes, nbytes - begin)) for begin in range(0, nbytes, chunk_bytes)]
        self._nbytes = nbytes
        self._driver = driver
        self._keep = keep
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
        """Begins locking in the background (about 0.1 s per GB of memory that is already there).

        A mapping of more than one chunk is locked before this returns: the driver refuses a copy that
        straddles locked and unlocked memory, so none may be issued in between.
        """
        atexit.register(self.close)
        if len(self._chunks) > 1:
            self._lock()
            return
        # A daemon, so that an exit runs `close` (which waits for it) instead of waiting here first.
        self._thread = threading.Thread(target=self._lock, name="prepclient-pin", daemon=True)
        self._thread.start()

    def _lock(self) -> None:
        reason = None
        for address, nbytes in self._chunks:
            try:
                code = self._driver.register(address, nbytes)
            except (OSError, RuntimeError, ValueError, ctypes.ArgumentError) as error:
                reason = str(error)
                break
            if code == 0:
                self._locked.append(address)
            elif code != ALREADY_REGISTERED:  # somebody else's lock serves as well; it is theirs to undo
                reason = self._driver.describe(code)
                break
        if reason is None:
            self._state = "pinned"
            return
        self._unlock()
        self._reason = f"{self._nbytes / 2**20:.0f} MiB of shared memory could not be page-locked: {reason}"
        self._state = "pageable"

    def _unlock(self) -> None:
        while self._locked:
            # What it answers is of no use: after a lost context or a driver's shutdown nothing is locked.
            with suppress(OSError, RuntimeError):
                self._driver.unregister(self._locked.pop())

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
        self.wait()
        self._unlock()
        self._keep = None
        self._state = "closed"
        atexit.unregister(self.close)
