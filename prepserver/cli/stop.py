"""``prepserver stop``: stops the daemon, and waits until it has ended."""

from __future__ import annotations

import argparse
import os
import select

from prepserver.cli import exits
from prepserver.cli.ask import ask
from prepserver.protocol.messages import AskStop, Stopping

END_SLACK_S = 5.0


def stop(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    answer, path = ask(arguments.runtime_dir, AskStop())
    assert isinstance(answer, Stopping)
    try:
        pidfd = os.pidfd_open(answer.pid)
    except ProcessLookupError:
        return exits.OK
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    patience_s = answer.within_s + END_SLACK_S
    ended = poll.poll(patience_s * 1000)
    os.close(pidfd)
    if not ended:
        raise exits.CommandError(
            f"the daemon in {path} (pid {answer.pid}) still runs after {patience_s:g} s; see its log"
        )
    return exits.OK
