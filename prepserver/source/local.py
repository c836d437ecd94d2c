"""Files of this machine: those that are slow to read are opened and brought into memory before they are needed.

A network file system takes milliseconds to open a file and as long to read it; a disk takes a part of one, if the
dataset is larger than the memory. While reads take so long, threads open the files of the next chunk, and the kernel
reads them, while the worker decodes. While they do not, nothing is opened early, because a thread would cost more time
than it saves.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import weakref
from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from prepserver.source.roots import Roots, open_below
from prepserver.source.samples import read_regular_file
from prepserver.source.storage.threads import Call, Threads

_JUDGED = 64  # reads that are judged together: they are slow if a quarter of them is

_LASTING = 128 * _JUDGED
"""Reads until they are judged again. Bytes that were asked for early come fast, so they are judged without."""

_SLOW_NS = 200_000
"""A slow read takes longer than this, and 1 ns more for each byte. From memory, a photo takes a fifth of it."""

_AT_ONCE = 8
"""Files that a process opens at once. A thread takes 8 MiB of address space."""

_MOST_OPEN, _MOST_IN_ALL = 64, 256
"""Files of one chunk, and of all datasets of a process, that are open early: its soft limit may be 1024 descriptors."""


class Pace:
    """Whether the reads of a dataset are slow. Attribute `is_slow`: whether they should begin early."""

    def __init__(self) -> None:
        self.is_slow = False
        self._slow, self._left = 0, _JUDGED

    def note(self, nbytes: int, took_ns: int) -> bool:
        """Count a read; return whether that was the time to judge."""
        self._slow += took_ns > _SLOW_NS + nbytes
        self._left -= 1
        if self._left:
            return False
        self.is_slow = not self.is_slow and self._slow >= _JUDGED // 4
        self._slow, self._left = 0, _LASTING if self.is_slow else _JUDGED
        return True


def ask_for(descriptor: int, offset: int, length: int) -> None:
    """Have a range of a file brought into memory, or its first part (the kernel has a limit); do not wait.

    A length of 0 stands for the rest of the file.

    Raises:
        OSError: The file has no such pages; it may be a pipe.
    """
    os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_WILLNEED)


class LocalFiles:
    """The files of a dataset that are read whole; one owner thread.

    Those that are opened early are read once. Another worker may get the chunk of some: these are closed when the chunk
    after the next is opened.
    """

    _all: ClassVar[weakref.WeakSet[LocalFiles]] = weakref.WeakSet()

    def __init__(self, roots: Roots) -> None:
        self._all.add(self)
        self._roots, self._pid, self._pace = roots, os.getpid(), Pace()
        self._now: dict[bytes, Call[int]] = {}
        self._before: dict[bytes, Call[int]] = {}

    @property
    def is_slow(self) -> bool:
        """Whether reading them takes so long that `open` should be called."""
        return self._pace.is_slow

    def open(self, paths: Iterable[bytes]) -> None:
        """Begin to open the files that `read` will be asked for soon, as many as there is room for; do not wait.

        Raises:
            OSError: No thread can be started.
        """
        self._forget_in_fork()
        _close(self._before)
        self._before, self._now = self._now, {}
        room = _MOST_IN_ALL - sum(len(each._now) + len(each._before) for each in self._all)
        for path in dict.fromkeys(itertools.islice(paths, max(0, min(_MOST_OPEN, room)))):
            self._now[path] = _threads().begin(partial(_opened, path, self._roots))

    def read(self, path: bytes) -> bytes:
        """Return the content of a file; raises as `read_regular_file`."""
        begun_ns = time.monotonic_ns()
        opened = self._taken(path) if self.is_slow else None
        data = read_regular_file(path, roots=self._roots, opened=opened)
        if self._pace.note(len(data), time.monotonic_ns() - begun_ns):
            self.close()
        return data

    def status(self, path: bytes) -> os.stat_result:
        """Return the status of what `read` will read; raises `OSError`."""
        descriptor = self._descriptor(path)
        return os.stat(path if descriptor is None else descriptor)

    def _taken(self, path: bytes) -> int | None:
        """Return the descriptor of a file that was opened early, and give it away; None if there is none."""
        descriptor = self._descriptor(path)
        (self._now if path in self._now else self._before).pop(path, None)
        return descriptor

    def _descriptor(self, path: bytes) -> int | None:
        self._forget_in_fork()
        call = self._now.get(path) or self._before.get(path)
        if call is None or call.take_back():  # it is not to wait for others, which may hang
            return None
        descriptor = call.wait(-1)
        return None if descriptor == -1 else descriptor

    def close(self) -> None:
        """Close what was opened early and not read."""
        self._forget_in_fork()
        _close(self._now)
        _close(self._before)

    def _forget_in_fork(self) -> None:
        if self._pid != os.getpid():  # a fork has no threads, so it would wait for ever
            self._now, self._before, self._pid = {}, {}, os.getpid()

    def __del__(self) -> None:
        # Sources have no `close`: one lives as long as its worker, or as the client's iterator.
        if self._now or self._before:
            try:  # noqa: SIM105 - at the end of Python there may be no modules left
                self.close()
            except Exception:  # noqa: BLE001 - as above
                pass


def _opened(path: bytes, roots: Roots) -> int:
    """Return the descriptor of a file whose bytes are on their way, -1 if it cannot be opened: reading it says why."""
    try:
        descriptor = open_below(roots, "the file", path)
    except Exception:  # noqa: BLE001 - even a lack of memory
        return -1
    with contextlib.suppress(Exception):  # it is a pipe, for one
        ask_for(descriptor, 0, 0)
    return descriptor


def _close(calls: dict[bytes, Call[int]]) -> None:
    while calls:
        _, call = calls.popitem()
        if call.take_back():
            continue
        if call.answer is None:
            _threads().begin(partial(_close_one, call))  # which begins after the call that it waits for
        else:
            _close_one(call)


def _close_one(call: Call[int]) -> bool:
    descriptor = call.wait(-1)
    if descriptor is not None and descriptor >= 0:
        with contextlib.suppress(OSError):  # a network file system may report an error here
            os.close(descriptor)
    return True


_started: tuple[int, Threads] | None = None
"""The threads of this process, and its number: a fork has none of them."""


def _threads() -> Threads:
    global _started  # a process has one page cache
    if _started is None or _started[0] != os.getpid():
        _started = os.getpid(), Threads(_AT_ONCE)
    return _started[1]
