"""One epoll for everything, with a callback per descriptor."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT


class Poll:
    """Watches descriptors; one owner thread."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._fresh: set[int] = set()  # registered in this round

    def watch(self, fd: int, callback: Callable[[], None], *, write: bool = False) -> None:
        """Calls `callback` when `fd` is readable or hung up; with `write`, also when it is writable."""
        events = READ | (WRITE if write else 0)
        if fd in self._callbacks:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
            self._fresh.add(fd)
        self._callbacks[fd] = callback

    def forget(self, fd: int) -> None:
        """Stops watching; call it before the number can be used again. Unknown ones are ignored."""
        if self._callbacks.pop(fd, None) is not None:
            # closed already (a zygote's line is, when it is lost): then the kernel forgot it
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def run_once(self, timeout_s: float) -> None:
        """Waits up to `timeout_s` and calls back whatever is ready."""
        self._fresh.clear()
        for fd, _ in self._epoll.poll(timeout_s):
            # An earlier callback of this round may have closed it, and another may have got its number: what
            # was seen was of the old one. Nothing is lost, the next round sees what is of the new.
            callback = None if fd in self._fresh else self._callbacks.get(fd)
            if callback is not None:
                callback()

    def close(self) -> None:
        """Closes the epoll descriptor."""
        self._epoll.close()
