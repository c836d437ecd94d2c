"""``prepserver stop``: asks the daemon to end, and waits until it has."""

from __future__ import annotations

import argparse
import os
import select
import sys

from prepserver import __version__
from prepserver.cli import exits
from prepserver.cli.ask import AskError, ask
from prepserver.protocol.messages import AskStop, Stopping

_SLACK_S = 5.0


def stop(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    try:
        answer, path = ask(arguments.runtime_dir, AskStop(__version__))
    except AskError as e:
        sys.stderr.write(f"prepserver stop: {e}\n")
        return e.code
    assert isinstance(answer, Stopping)
    try:
        pidfd = os.pidfd_open(answer.pid)
    except ProcessLookupError:
        return exits.OK
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    ended = poll.poll((answer.within_s + _SLACK_S) * 1000)
    os.close(pidfd)
    if ended:
        return exits.OK
    sys.stderr.write(
        f"prepserver stop: the daemon in {path} (pid {answer.pid}) still runs after "
        f"{answer.within_s + _SLACK_S:g} s; see its log\n"
    )
    return exits.FAILED
