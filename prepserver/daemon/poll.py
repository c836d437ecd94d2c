"""One epoll for everything, with a callback for each descriptor."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT


class Poll:
    """Watches descriptors, for one owner thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._writing: set[int] = set()  # also watched for room to write
        self._fresh: set[int] = set()  # registered in this round

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Calls `callback` when `fd` is readable or hung up."""
        if fd not in self._callbacks:
            self._epoll.register(fd, READ)
            self._fresh.add(fd)
        self._callbacks[fd] = callback

    def watch_writing(self, fd: int, wanted: bool) -> None:
        """Also calls back when `fd` is writable, while that is `wanted`. Ignores unknown descriptors."""
        if fd in self._callbacks and wanted != (fd in self._writing):
            self._epoll.modify(fd, READ | WRITE if wanted else READ)
            self._writing ^= {fd}

    def forget(self, fd: int) -> None:
        """Stops watching; call it before the number can be used again. Ignores unknown descriptors."""
        self._writing.discard(fd)
        if self._callbacks.pop(fd, None) is not None:
            # The kernel has forgotten a descriptor that is closed already, such as the line of a lost zygote.
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def run_once(self, timeout_s: float) -> None:
        """Waits up to `timeout_s` and calls back whatever is ready."""
        self._fresh.clear()
        for fd, _ in self._epoll.poll(timeout_s):
            # An earlier callback of this round may have closed this descriptor, and another may have opened one with
            # its number. Then the event is the old one's; the next round brings those of the new one.
            callback = None if fd in self._fresh else self._callbacks.get(fd)
            if callback is not None:
                callback()

    def close(self) -> None:
        """Closes the epoll descriptor."""
        self._epoll.close()
