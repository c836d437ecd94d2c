"""``prepserver stop``: stops the daemon, and waits until it has ended."""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from pathlib import Path

from prepserver.cli import exits
from prepserver.cli.ask import ask
from prepserver.daemon.attach import peer_pidfd
from prepserver.daemon.runtime_dir import said_in_lock
from prepserver.protocol.messages import ATTACH_SOCKET, AskStop, Stopping

END_SLACK_S = 5.0
_LOOK_AGAIN_S = 0.05


def stop(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    # The pid in the daemon's answer may be one of another PID namespace, so the kernel says which process it is.
    pidfds: list[int] = []
    try:
        answer, place = ask(arguments.runtime_dir, AskStop(), meet=lambda line: pidfds.append(peer_pidfd(line)))
        assert isinstance(answer, Stopping)
        patience_s = answer.within_s + END_SLACK_S
        has_ended = _await_process(pidfds[0], patience_s) if pidfds[0] >= 0 else _await_lock(place, patience_s)
    finally:
        for pidfd in filter(lambda fd: fd >= 0, pidfds):
            os.close(pidfd)
    if not has_ended:
        raise exits.CommandError(f"the daemon in {place} still runs after {patience_s:.0f} s; see its log")
    if (place / ATTACH_SOCKET).exists():  # the daemon removes a socket of its own, or another has already taken over
        sys.stderr.write(
            f"{place / ATTACH_SOCKET} still takes connections. If it is systemd's, the next one starts a daemon again; "
            "`systemctl stop prepserver.socket prepserver.service` stops both\n"
        )
    return exits.OK


def _await_process(pidfd: int, patience_s: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(patience_s * 1000))


def _await_lock(place: Path, patience_s: float) -> bool:
    """Waits until the daemon has emptied its lock file, as its last deed: before Linux 6.5, from another namespace."""
    until_s, before = time.monotonic() + patience_s, said_in_lock(place)
    while (now := said_in_lock(place)) == before and now and time.monotonic() < until_s:
        time.sleep(_LOOK_AGAIN_S)
    return now != before or not now
