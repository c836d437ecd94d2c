"""``prepserver trace``: records a timeline of workers and jobs, for Perfetto."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from prepserver import __version__
from prepserver.cli import exits
from prepserver.cli.ask import ask
from prepserver.cli.output import write_output
from prepserver.protocol.messages import AskStatus
from prepserver.protocol.trace import Heard, MadeChunk, Told, Trace, Ways
from prepserver.telemetry.logs import counted


def trace(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    if not arguments.output.parent.is_dir():
        raise exits.CommandError(f"-o {arguments.output}: there is no folder {arguments.output.parent}", exits.USAGE)
    since_ns = time.monotonic_ns()
    ask(arguments.runtime_dir, AskStatus())  # fails now, and not after `seconds`, if no daemon runs
    time.sleep(arguments.seconds)
    found = ask(arguments.runtime_dir, AskStatus(since_ns))[0]
    if any("told" not in job for job in found["jobs"]):
        raise exits.CommandError(
            f"the daemon is release {found['version']}, which records less than a trace of {__version__} needs: use "
            "prepserver of that release, or replace the daemon with `prepserver start --replace`"
        )
    chunks = [MadeChunk(*each) for each in found["chunks"]]
    made = Trace(time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_REALTIME))
    flows: dict[MadeChunk, list[int]] = {}
    for job in found["jobs"]:
        ways = _job(made, job, [each for each in chunks if each.stream == job["stream"]])
        for chunk, numbers in ways.of_chunks.items():
            flows.setdefault(chunk, []).extend(numbers)
    made.chunks(chunks, flows)
    write_output(arguments.output, made.content())
    file = "the output" if str(arguments.output) == "-" else arguments.output
    sys.stderr.write(f"{counted(len(found['chunks']), 'chunk')}: open {file} at ui.perfetto.dev\n")
    return exits.OK


def _job(trace: Trace, job: Mapping[str, Any], chunks: Sequence[MadeChunk]) -> Ways:
    """The tracks of a job as the daemon sees it: rows announced to it, rows it read, what its loop did meanwhile."""
    pid, process, rank = int(job["pid"]), f"job {job['name']}", f"{job['name']} rank {job['rank']}"
    ways = Ways(trace, chunks, [Told(*each) for each in job["told"]])
    loop, read = trace.track(pid, process, f"{rank}: loop"), trace.track(pid, process, f"{rank}: rows")
    for before, now in itertools.pairwise(Heard(*each) for each in job["heard"]):
        trace.span(
            loop, _batches(now.batches - before.batches), before.at_ns, now.at_ns,
            loading_ms=(now.wait_ns - before.wait_ns) / 1e6, copying_ms=(now.copy_ns - before.copy_ns) / 1e6,
            computing_ms=(now.own_ns - before.own_ns) / 1e6,
        )  # fmt: skip
        if now.upto > before.upto:
            flows = ways.to(before.upto, now.upto, now.at_ns)
            trace.instant(read, "copied", now.at_ns, flows, start=before.upto, stop=now.upto)
    trace.told(read, ways.of_told)
    return ways


def _batches(number: int) -> str:
    return f"{number} batch{'es' * (number != 1)}"
