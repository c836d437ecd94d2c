"""Tells systemd that the daemon is ready, its state, and that it is alive: one datagram per message (sd_notify(3))."""

from __future__ import annotations

import contextlib
import os
import socket


class Notifier:
    """Sends to ``$NOTIFY_SOCKET``; does nothing if systemd did not start this process.

    Attributes:
        watchdog_s: Interval of ``WATCHDOG=1`` messages (half of WatchdogSec), or None.
    """

    def __init__(self) -> None:
        # Removed from the environment: children must not send in our name.
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        usec = os.environ.pop("WATCHDOG_USEC", "")
        for_us = os.environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog_s = int(usec) / 2e6 if usec.isdigit() and for_us and self._address else None

    @property
    def is_heard(self) -> bool:
        """Whether systemd listens."""
        return bool(self._address)

    def send(self, **state: str) -> None:
        """Sends ``NAME=value`` lines, such as ``READY="1"`` or ``STATUS="12 jobs"``."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        text = "\n".join(f"{name}={value}" for name, value in state.items())
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s:
            s.sendto(text.encode(), address)
