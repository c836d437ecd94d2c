"""An engine gives the pool its workers: the zygote forks them; the bridge to Ray has them on other machines.

Both are processes that speak one protocol (`prepserver.worker.launch`). To the pool, every worker is a line, a page of
counters, and a descriptor that is readable when the worker has ended. An engine that ends takes its workers with it and
is started again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from prepserver.daemon.poll import Poll
from prepserver.worker.launch import Zygote, ZygoteError

log = logging.getLogger(__name__)

_BACKOFF_FIRST_S = 0.1  # wait before the second replacement; the first starts at once
_BACKOFF_MOST_S = 30.0


class Engine:
    """Decides when `process` is started, and started again.

    `read` is called when the process has sent something.

    Attributes:
        why: Why it is not up; empty if it is.
    """

    def __init__(self, poll: Poll, process: Zygote, read: Callable[[Engine], None]) -> None:
        self.process = process
        self._poll = poll
        self._read = read
        self._fd = -1
        self._failures = 0
        self._due_s = 0.0
        self.why = "it has not started yet"

    @property
    def runs(self) -> bool:
        """Whether there is a process."""
        return self._fd >= 0

    @property
    def is_up(self) -> bool:
        """Whether it can be asked for workers."""
        return self.runs and self.process.ready and not self.process.about.broken

    def start(self) -> None:
        """Starts the process; raises `ZygoteError` if that fails."""
        self.process.start()
        self._fd = self.process.fileno()
        self._poll.watch(self._fd, lambda: self._read(self))

    def watch_writing(self) -> None:
        """Also watches the process for writing while requests to it wait for room."""
        if self.runs:
            self._poll.watch_writing(self._fd, self.process.blocked)

    def forget(self) -> None:
        """Stops watching the process."""
        if self.runs:
            self._poll.forget(self._fd)
            self._fd = -1

    def came_up(self) -> None:
        """Notes that the process can be asked for workers."""
        self._failures = 0
        self.why = ""

    def gone(self, why: str, now_s: float) -> None:
        """Notes that the process has ended. The first restart is at once: somebody may have killed it by mistake."""
        self.forget()
        self._failures += 1
        self._due_s = now_s + (0.0 if self._failures == 1 else backoff_s(self._failures))
        self.why = why

    def restart(self, now_s: float) -> None:
        """Starts the process again if its backoff is over."""
        if now_s < self._due_s:
            return
        try:
            self.start()
        except ZygoteError as e:
            self._failures += 1
            self._due_s = now_s + backoff_s(self._failures)
            log.error("cannot start %s: %s", self.process.name, e)


def backoff_s(failures: int) -> float:
    """How long to wait before the next try after this many failures."""
    return float(min(_BACKOFF_MOST_S, _BACKOFF_FIRST_S * 2.0 ** (failures - 1)))
