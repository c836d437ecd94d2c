"""systemd: takes the attach socket from it (sd_listen_fds(3)), and reports the daemon's state to it (sd_notify(3)).

The socket outlives the daemon, so clients that attach during a restart wait in its queue. The daemon never removes it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping
from pathlib import Path

_FIRST_FD = 3
_ONCE_S = 1.0
"""Longest wait for the manager to take a message that is not repeated."""

ATTACH_NAME = "attach"
"""The socket's name in its unit (FileDescriptorName=); a single socket may have any name."""


class ActivationError(RuntimeError):
    """The passed socket cannot be the attach socket; the text says what to change."""


def take_attach_socket(environ: MutableMapping[str, str]) -> socket.socket | None:
    """The attach socket that systemd passed to this process, or None. Its variables are removed from `environ`.

    Raises:
        ActivationError: None of the passed sockets can be the attach socket.
    """
    count = environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if environ.pop("LISTEN_PID", "") != str(os.getpid()) or not count.isdigit() or count == "0":
        return None
    fds = range(_FIRST_FD, _FIRST_FD + int(count))
    for fd in fds:
        os.set_inheritable(fd, False)  # workers must not hold the socket open
    chosen = [fd for fd, name in zip(fds, names, strict=False) if name == ATTACH_NAME] or list(fds)
    if len(chosen) != 1:
        raise ActivationError(
            f"{count} sockets were passed, and not exactly one is named {ATTACH_NAME}: "
            f"set FileDescriptorName={ATTACH_NAME} in the socket unit of the attach socket"
        )
    sock = socket.socket(fileno=chosen[0])
    sock.setblocking(False)
    if (
        sock.family != socket.AF_UNIX
        or sock.type != socket.SOCK_SEQPACKET
        or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    ):
        raise ActivationError(
            "the socket that was passed is not a listening unix SEQPACKET socket: the socket unit needs "
            "ListenSequentialPacket=, and Accept=no"
        )
    return sock


def check_place(sock: socket.socket, expected: Path) -> None:
    """Checks that `sock` listens where the daemon expects it.

    Raises:
        ActivationError: It listens elsewhere.
    """
    bound = sock.getsockname()
    try:
        same = os.path.samefile(os.path.dirname(bound), expected.parent) and os.path.basename(bound) == expected.name
    except (OSError, TypeError, ValueError):  # gone, or a name without a path
        same = False
    if not same:
        raise ActivationError(
            f"the socket that was passed listens at {os.fsdecode(bound)!r}, but the daemon's is {expected}: "
            "make ListenSequentialPacket= of the socket unit agree with runtime_dir"
        )


class Notifier:
    """Sends messages to ``$NOTIFY_SOCKET``, each a datagram; does nothing if systemd did not start this process.

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
            # The loop must continue if the manager reads nothing. A lost sign of life does not matter: another follows.
            s.settimeout(0.0 if "WATCHDOG" in state else _ONCE_S)
            s.sendto(text.encode(), address)
