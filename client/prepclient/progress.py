"""Shows how far the listing of a source is: a counting line on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time

from rich.console import Console
from rich.status import Status

log = logging.getLogger("prepclient")

_LOG_EVERY_S = 10.0


class ScanProgress:
    """A line that appears with the first report and disappears at `close`. `name` names the source."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._status: Status | None = None
        self._next_log_s = 0.0

    def __call__(self, samples: int) -> None:
        """Shows that `samples` have been found so far."""
        text = f"listing {self._name}: {samples:,} samples"
        if sys.stderr.isatty():
            if self._status is None:
                self._status = Console(stderr=True).status(text)
                self._status.start()
            self._status.update(text)
        elif time.monotonic() >= self._next_log_s:
            log.info("%s", text)
            self._next_log_s = time.monotonic() + _LOG_EVERY_S

    def close(self) -> None:
        """Removes the line."""
        if self._status is not None:
            self._status.stop()
            self._status = None
