"""Bounds what the log says about misbehaving peers: some lines for each user, then how many more there were."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass

_MOST = 20
_WINDOW_S = 30.0


@dataclass(slots=True)
class _Window:
    ends_s: float
    said: int = 0
    dropped: int = 0


class Complaints:
    """Logs at most `_MOST` warnings and errors about a user in `_WINDOW_S`."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._windows: dict[int, _Window] = {}

    def warn(self, uid: int, text: str, *arguments: object) -> None:
        """Logs `text`, or counts it."""
        self._log_or_count(uid, logging.WARNING, None, text, arguments)

    def error(self, uid: int, error: Exception, text: str, *arguments: object) -> None:
        """Logs `text` with the traceback of `error`, a bug of the daemon; or counts it."""
        self._log_or_count(uid, logging.ERROR, error, text, arguments)

    def _log_or_count(
        self, uid: int, level: int, error: Exception | None, text: str, arguments: tuple[object, ...]
    ) -> None:
        window = self._windows.setdefault(uid, _Window(time.monotonic() + _WINDOW_S))
        if window.said < _MOST:
            window.said += 1
            self._log.log(level, text, *arguments, exc_info=error)
        else:
            window.dropped += 1

    def tick(self, now_s: float) -> None:
        """Logs the counts of windows that have ended."""
        for uid in [uid for uid, window in self._windows.items() if window.ends_s <= now_s]:
            window = self._windows.pop(uid)
            if window.dropped:
                self._log.warning("%d more warnings about uid %d were not logged", window.dropped, uid)

    def close(self) -> None:
        """Logs all counts."""
        self.tick(math.inf)
