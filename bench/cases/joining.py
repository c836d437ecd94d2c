"""When a job joins one that already runs, how soon does it get its first batch, and how many rows are made twice?

Two jobs with the same arguments on tiny synthetic images, an epoch of 4 blocks. When the first job has come to 10, 40,
70 and 95 % of a block, the second one starts and reads an epoch: once with both as fast as they go, once with both at
1000 rows/s. Each time the daemon is a new one, because it judges a wait by the rate of the last ten seconds in which
it worked.

*First batch* is counted from the making of the client. *Longest wait later* is the wait for the shared stream. *Rows
made twice* are the rows that the daemon has made, less one pass of the stream on which both jobs are in the end (all of
the second job's rows, if it shares no stream). Chunks in work do not count.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.case import Case, Figures, Run
from bench.harness.jobs import Job
from bench.harness.server import Server, running_server
from bench.harness.tables import Sheet
from prepserver.cli.ask import ask_status

_BLOCK = 8192
_JOIN_WAIT_S = 30.0
_TARGET = 0.02
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class _Plan:
    """Blocks in an epoch, places in a block, and paces of both jobs in rows/s (0: as fast as they go)."""

    blocks: int
    places: Sequence[float]
    paces: Sequence[float]


_FULL = _Plan(4, (0.1, 0.4, 0.7, 0.95), (0.0, 1000.0))
_SMOKE = _Plan(2, (0.5,), (0.0,))


def measure(run: Run) -> Figures:
    plan = _SMOKE if run.smoke else _FULL
    samples = plan.blocks * _BLOCK
    found = []
    for pace in plan.paces:
        for place in plan.places:
            with running_server(run.scratch, run.workers) as server:
                config = run.job("tiny", Path(), samples=samples, rows_per_s=pace, size=32, join_wait_s=_JOIN_WAIT_S)
                found.append({"pace": pace, "place": place, **join(server, config, place)})
    return {"workers": run.workers, "samples": samples, "joins": found}


def join(server: Server, config: dict[str, Any], place: float) -> dict[str, Any]:
    """One job that joins at a place in a block of the other one, until the end of its epoch."""
    samples = config["samples"]
    first, late = Job({**config, "job": "first"}), Job({**config, "job": "late"})
    try:
        for job in (first, late):
            job.hear("ready")
        first.say("go")
        first.hear("first")
        while by_name(state(server))["first"]["position"] < place * _BLOCK:
            time.sleep(_POLL_S)
        went_ns = time.monotonic_ns()
        late.say("go")
        late.hear("first")
        while by_name(now := state(server))["late"]["batches"] * config["batch"] < samples:
            time.sleep(_POLL_S)
        late.say("stop")
        record = json.loads(late.hear())
        first.say("stop")
        first.hear()
    finally:
        for job in (first, late):
            job.end()
    shared = next(s for s in now["streams"] if s["id"] == by_name(now)["first"]["stream"])
    made = sum(stream["rows_filled"] for stream in now["streams"])
    waits_s = [(came - asked) / 1e9 for asked, came in zip(record["asked_ns"], record["came_ns"], strict=True)]
    return {
        "shares": len(now["streams"]) == 1,
        "first_batch_ms": (record["came_ns"][0] - went_ns) / 1e6,
        "longest_wait_s": max(waits_s[1:]),
        "extra_rows": max(0, made - shared["ready_upto"]),  # without a few chunks that are in work
    }


def state(server: Server) -> dict[str, Any]:
    """The daemon's status, asked in this process: `Server.status` takes too long to follow a job."""
    return ask_status(str(server.runtime_dir))


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in found["jobs"]}


def sheets(result: Figures) -> list[Sheet]:
    samples = result["samples"]
    sheet = Sheet(
        f"A second job of equal speed, epoch of {samples} in blocks of {_BLOCK}, {result['workers']} workers",
        ("joins", "first batch, ms", "longest wait later, s", "rows made twice", "of an epoch", "shares in the end"),
    )
    for found in result["joins"]:
        pace = f"{found['pace']:g} rows/s each" if found["pace"] else "as fast as they go"
        sheet.rows.append((
            f"at {found['place']:.0%} of a block, {pace}", f"{found['first_batch_ms']:.0f}",
            f"{found['longest_wait_s']:.1f}", str(found["extra_rows"]),
            f"{found['extra_rows'] / samples:.2%} (< {_TARGET:.0%})", "yes" if found["shares"] else "NO",
        ))  # fmt: skip
    return [sheet]


CASE = Case("Joining a running stream", measure, sheets)
