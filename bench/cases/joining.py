"""A job that comes while another one runs: how soon it has its first batch, and what is decoded twice for it.

``python bench/joining.py [--smoke] [--markdown]``. Writes ``bench/out/joining.json``.

One job runs. When it has come to a certain place of a block, another one with the same arguments starts, and reads
an epoch. Rows made are counted by the daemon: those beyond one pass of the first job's stream are made for the late
one alone.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import command
from fingerprint import fingerprint
from jobs import Job
from server import Server, running_server
from tables import Sheet

from prepserver import __version__
from prepserver.cli.ask import ask
from prepserver.protocol.messages import AskStatus

_BLOCK = 8192
_BATCH = 64
_PIXELS = 32
_JOIN_WAIT_S = 30.0
_TARGET = 0.02
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: blocks of an epoch, places in a block, paces of both jobs (0: as fast as they go)."""

    blocks: int
    places: Sequence[float]
    paces: Sequence[float]


FULL = Plan(4, (0.1, 0.4, 0.7, 0.95), (0.0, 1000.0))
SMOKE = Plan(2, (0.5,), (0.0,))


def main() -> None:
    command.run(
        "joining", "Joining a running stream.",
        lambda arguments: measure(SMOKE if arguments.smoke else FULL, arguments.workers),
        sheets, takes_data=False,
    )  # fmt: skip


def measure(plan: Plan, workers: int) -> dict[str, Any]:
    machine = fingerprint()
    samples = plan.blocks * _BLOCK
    with tempfile.TemporaryDirectory(prefix="prepserver-bench-") as name:
        found = []
        for pace in plan.paces:
            for place in plan.places:
                # a daemon of its own for each: it goes by the rate of its last ten seconds
                folder = Path(name) / f"{pace:g}-{place:g}"
                folder.mkdir()
                with running_server(folder, workers) as server:
                    found.append({"pace": pace, "place": place, **join(server, samples, place, pace)})
    return {"machine": machine, "workers": workers, "samples": samples, "joins": found}


def join(server: Server, samples: int, place: float, pace: float) -> dict[str, Any]:
    """One late job, from its start to the end of its epoch."""
    config = {
        "contender": "tiny", "samples": samples, "batch": _BATCH, "seed": 1, "runtime_dir": str(server.runtime_dir),
        "join_wait_s": _JOIN_WAIT_S, "rows_per_s": pace, "size": _PIXELS,
    }  # fmt: skip
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
        began = state(server)
        while by_name(now := state(server))["late"]["batches"] * _BATCH < samples:
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
        "early": len(began["streams"]) == 2,
        "shares": len(now["streams"]) == 1,
        "first_batch_ms": (record["came_ns"][0] - went_ns) / 1e6,
        "longest_wait_s": max(waits_s[1:]),
        # what is in work now counts for less than it is: a few chunks
        "extra_rows": max(0, made - shared["ready_upto"]),
        "extra": max(0, made - shared["ready_upto"]) / samples,
    }


def state(server: Server) -> dict[str, Any]:
    answer, fd, _ = ask(str(server.runtime_dir), AskStatus(__version__))
    try:
        found: dict[str, Any] = json.loads(os.pread(fd, answer.nbytes, 0))
    finally:
        os.close(fd)
    return found


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in found["jobs"]}


def sheets(result: dict[str, Any]) -> list[Sheet]:
    sheet = Sheet(
        f"A second job of equal speed, epoch of {result['samples']} in blocks of {_BLOCK}, {result['workers']} workers",
        ("joins", "first batch, ms", "longest wait later, s", "rows made twice", "of an epoch", "shares in the end"),
    )
    for found in result["joins"]:
        pace = f"{found['pace']:g} rows/s each" if found["pace"] else "as fast as they go"
        sheet.rows.append((
            f"at {found['place']:.0%} of a block, {pace}", f"{found['first_batch_ms']:.0f}",
            f"{found['longest_wait_s']:.1f}", str(found["extra_rows"]), f"{found['extra']:.2%} (< {_TARGET:.0%})",
            "yes" if found["shares"] else "NO",
        ))  # fmt: skip
    return [sheet]


if __name__ == "__main__":
    main()
