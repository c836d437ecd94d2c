"""Calls that wait for storage, each made by one of many threads, at little cost.

A `ThreadPoolExecutor` does more for each call than this needs, and takes half as much CPU time for it as obstore takes
to read a photo.
"""

from __future__ import annotations

import errno
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Generic, TypeVar

T = TypeVar("T")


class Call(Generic[T]):
    """A call for a thread to make. Attribute `answer`: the result; None until the call has ended, or if it raised."""

    __slots__ = ("_is_made", "_is_taken", "_work", "answer")

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._is_taken, self._is_made = Lock(), Lock()
        self._is_made.acquire()
        self.answer: T | None = None

    def make(self) -> None:
        """Make the call, unless it was taken back."""
        if self._is_taken.acquire(blocking=False):
            try:
                self.answer = self._work()
            finally:
                self._is_made.release()

    def take_back(self) -> bool:
        """Return whether the call has not begun; then it never does, and nobody waits for it."""
        is_ours = self._is_taken.acquire(blocking=False)
        if is_ours:
            self._is_made.release()
        return is_ours

    def wait(self, timeout_s: float) -> T | None:
        """Return the answer; None if the call does not end in time."""
        if self.answer is None and self._is_made.acquire(timeout=timeout_s):
            self._is_made.release()  # for whoever waits next
        return self.answer


class Threads:
    """Threads for calls that raise nothing: each call starts one, up to `most`. One owner thread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: SimpleQueue[Call[object] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        # They end before Python does: a thread that returns from obstore later would crash the process.
        weakref.finalize(self, _end, self._calls, self._threads)

    def begin(self, work: Callable[[], T]) -> Call[T]:
        """Have calls made in order, as threads become free; raises `OSError` if there is none, nor can be."""
        call = Call(work)
        if len(self._threads) < self._most:
            thread = Thread(target=_serve, args=(self._calls,), name="storage", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # Python's way to say that the system has no thread left
                if not self._threads:
                    raise OSError(errno.EAGAIN, "the system gives this process no thread to read with") from None
            else:
                self._threads.append(thread)
        self._calls.put(call)  # type: ignore[arg-type]  # of any type
        return call


def _serve(calls: SimpleQueue[Call[object] | None]) -> None:
    while (call := calls.get()) is not None:
        call.make()
        call = None  # an idle thread holds no answer


def _end(calls: SimpleQueue[Call[object] | None], threads: list[Thread]) -> None:
    for _ in threads:
        calls.put(None)
    for thread in threads:
        if thread is not current_thread():  # whose call was the last that needed these threads
            thread.join()
