"""Bounds what is logged about misbehaving peers: some lines for each user, then how many more there were."""

from __future__ import annotations

import logging
import math

from prepserver.daemon import awake

_MOST = 20
_WINDOW_S = 30.0


class Complaints:
    """Logs at most `_MOST` warnings and errors about a user in `_WINDOW_S`."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._windows: dict[int, tuple[float, int]] = {}  # uid -> end of its window, and warnings in it

    def warn(self, uid: int, text: str, *arguments: object, bug: Exception | None = None) -> None:
        """Logs `text`, with the traceback of a `bug` in the daemon, or only counts it."""
        ends_s, warnings = self._windows.get(uid, (awake.now_s() + _WINDOW_S, 0))
        self._windows[uid] = ends_s, warnings + 1
        if warnings < _MOST:
            self._log.log(logging.ERROR if bug else logging.WARNING, text, *arguments, exc_info=bug)

    def tick(self, now_s: float) -> None:
        """Logs the counts of windows that have ended."""
        for uid in [uid for uid, (ends_s, _) in self._windows.items() if ends_s <= now_s]:
            dropped = self._windows.pop(uid)[1] - _MOST
            if dropped > 0:
                self._log.warning("%d more warnings about uid %d were not logged", dropped, uid)

    def close(self) -> None:
        """Logs all counts."""
        self.tick(math.inf)
