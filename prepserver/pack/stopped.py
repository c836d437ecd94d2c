"""Ctrl-C, at a moment of the packer's choice."""

from __future__ import annotations

import signal
import threading
from typing import Any


class StoppedByHand:
    """Ctrl-C while samples are packed, raised where the packer asks for it.

    Raised at any time, it could strike in a callback or a finalizer, where Python reports it and goes on.
    """

    def __init__(self) -> None:
        self._is_due = False
        self._before: Any = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self._is_due = True
        signal.signal(number, signal.default_int_handler)  # a second Ctrl-C strikes at once

    def __call__(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self._is_due:
            raise KeyboardInterrupt

    def end(self) -> None:
        """Restore the handler that Ctrl-C had before."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
