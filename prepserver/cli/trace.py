"""``prepserver trace``: what workers and jobs did in some seconds, for Perfetto."""

from __future__ import annotations

import argparse
import sys
import time

from prepserver.cli import exits
from prepserver.cli.ask import ask
from prepserver.protocol.messages import AskStatus
from prepserver.protocol.trace import Heard, MadeChunk, Trace
from prepserver.telemetry.logs import counted


def trace(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    if not arguments.output.parent.is_dir():
        raise exits.CommandError(f"-o {arguments.output}: there is no folder {arguments.output.parent}", exits.USAGE)
    since_ns = time.monotonic_ns()
    ask(arguments.runtime_dir, AskStatus())  # without a daemon there is nothing to wait for
    time.sleep(arguments.seconds)
    found = ask(arguments.runtime_dir, AskStatus(since_ns))[0]
    made = Trace()
    made.chunks(MadeChunk(*each) for each in found["chunks"])
    for job in found["jobs"]:
        made.heard(job, [Heard(*each) for each in job["heard"]])
    try:
        arguments.output.write_text(made.text(), encoding="utf-8")
    except OSError as e:
        raise exits.CommandError(f"{arguments.output}: {e.strerror}") from e
    sys.stderr.write(f"{counted(len(found['chunks']), 'chunk')}: open {arguments.output} at ui.perfetto.dev\n")
    return exits.OK
