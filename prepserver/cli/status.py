"""``prepserver status``: the daemon's state as tables for people or JSON for machines, once or repeatedly."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from prepserver.cli import exits
from prepserver.cli.ask import ask_status
from prepserver.cli.quarantine import show
from prepserver.cli.table import console, table
from prepserver.cli.verdicts import verdicts
from prepserver.config import format_bytes


def status(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    if arguments.quarantine:
        return show(arguments)
    if arguments.json:
        for found in _answers(arguments):
            sys.stdout.write(json.dumps(found, indent=None if arguments.watch else 2) + "\n")
            sys.stdout.flush()
    else:
        _show(_answers(arguments), console(), is_watched=arguments.watch is not None)
    return exits.OK


def _answers(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The daemon's state: once, or every ``watch`` seconds until Ctrl-C."""
    yield ask_status(arguments.runtime_dir)
    if arguments.watch is None:
        return
    ended = threading.Event()

    def end(number: int, _frame: object) -> None:
        # No KeyboardInterrupt: one raised inside a callback or a finalizer is reported and ignored by Python.
        ended.set()
        signal.signal(number, signal.SIG_DFL)  # a second Ctrl-C ends it at once

    signal.signal(signal.SIGINT, end)
    while not ended.wait(arguments.watch):
        yield ask_status(arguments.runtime_dir)


def _show(answers: Iterator[dict[str, Any]], out: Console, *, is_watched: bool) -> None:
    if not (is_watched and out.is_terminal):
        for number, found in enumerate(answers):
            out.print(*([""] if number else []), *tables(found), sep="\n")
        return
    with Live(console=out, screen=True, auto_refresh=False) as live:
        for found in answers:
            live.update(Group(*tables(found)), refresh=True)


def tables(found: dict[str, Any]) -> Iterator[RenderableType]:
    """The daemon's state as a line and tables."""
    memory = found["memory"]
    yield Text(
        f"prepserver {found['version']} (pid {found['pid']}) in {found['runtime_dir']}: {found['state']} for "
        f"{duration(found['uptime_s'])}, {found['rows_per_s']:.0f} images/s, rings "
        f"{format_bytes(memory['rings_bytes'])} of {format_bytes(memory['budget_bytes'])}, "
        f"{found['kernels']['path']} kernels ({found['kernels']['why']})"
    )
    everywhere = [s["id"] for s in found["streams"] if s["reads_everywhere"]]
    yield Text(_sandbox(found["sandbox"], everywhere))
    if found["workers"]:
        yield table(
            "workers", ("n", "pid", "state", "busy", "images", "bad", "restarts"),
            [
                (w["number"], w["pid"] or "-", w["state"], _percent(w.get("busy_fraction")), w.get("rows", 0),
                 w.get("bad_rows", 0), w["restarts"])
                for w in found["workers"]
            ],
            gives_way="state",
        )  # fmt: skip
    yield from _remote(found)
    if found["jobs"]:
        yield table(
            "jobs", ("id", "job", "rank", "stream", "epoch", "images/s", "waits", "for", "ready"),
            [
                (j["id"], j["name"], _rank(j), j["stream"], _epoch(j), _rate(j.get("images_per_s")),
                 _percent(j.get("wait_fraction")), j.get("waits_for") or "-", j["ready_rows"])
                for j in found["jobs"]
            ],
            gives_way="job",
        )  # fmt: skip
        yield from verdicts(found["jobs"])
    if found["streams"]:
        yield table(
            "streams", ("id", "samples", "position", "ready", "made", "delivered", "sharing", "waits for", "lanes"),
            [
                (s["id"], s["samples"], s["position"], s["ready_upto"] - s["position"], s["rows_filled"],
                 s["rows_delivered"], f"{s['sharing_factor']:.2f}",
                 "-" if s["waits_for"] is None else f"stream {s['waits_for']}", ", ".join(map(_lane, s["lanes"])))
                for s in found["streams"]
            ],
            gives_way="lanes",
        )  # fmt: skip
    if found.get("caches"):
        yield table(
            "caches", ("id", "dataset", "holds", "in", "samples", "bytes", "hits", "damaged"),
            [
                (c["id"], c["source"], "files" if c["form"] == "encoded" else f"after {c['ops'][-1]}", c["place"],
                 f"{c['rows']} of {c['samples']}", format_bytes(c["bytes"]), _percent(c["hit_rate"]), c["damaged"])
                for c in found["caches"]
            ],
            gives_way="dataset",
        )  # fmt: skip
    if apart := [str(s["id"]) for s in found["streams"] if s.get("apart")]:
        yield Text(
            f"streams {', '.join(apart)} are kept apart: their pipelines are too slow to share with other users' jobs"
        )
    if found.get("gpus"):
        yield table(
            "GPUs", ("n", "name", "busy", "memory"),
            [
                (g["index"], g["name"], "-" if g["utilisation_percent"] is None else f"{g['utilisation_percent']} %",
                 f"{format_bytes(g['memory_used_bytes'])} of {format_bytes(g['memory_total_bytes'])}")
                for g in found["gpus"]
            ],
            gives_way="name",
        )  # fmt: skip
    for source, indices in found["quarantined"].items():
        yield Text(f"quarantined in source {source[:12]}: samples {', '.join(map(str, indices))}")
    for each in found.get("quarantined_for_pipelines", []):
        yield Text(
            f"quarantined in source {each['source'][:12]} for pipeline {each['pipeline'][:12]}: samples "
            f"{', '.join(map(str, each['samples']))}"
        )


def _remote(found: dict[str, Any]) -> Iterator[RenderableType]:
    for engine in found.get("engines", []):
        if engine["state"] != "up":
            yield Text(f"{engine['name']} is down, and its workers with it: {engine['why']}")
    if remote := [w for w in found["workers"] if w.get("host")]:
        yield table(
            "remote workers", ("n", "host", "sends"),
            [(w["number"], w["host"], _bytes_per_s(w["received_bytes_per_s"])) for w in remote],
            gives_way="host",
        )  # fmt: skip


def _sandbox(sandbox: dict[str, str], everywhere: list[int]) -> str:
    if sandbox["mode"] == "off":
        return "sandbox: off"
    missing = f"; missing: {sandbox['missing']}" if sandbox["missing"] else ""
    open_ = f"; but workers may read all files, for the datasets of streams {', '.join(map(str, everywhere))}"
    return f"sandbox: {sandbox['parts']}{missing}{open_ if everywhere else ''}"


def _lane(lane: dict[str, Any]) -> str:
    views = f" of {', '.join(lane['fields'])}" if len(lane["fields"]) > 3 else ""
    return f"{lane['id']}: {lane['rows']} rows{views}, {format_bytes(lane['ring_bytes'])}, {lane['jobs']} jobs"


def _rank(job: dict[str, Any]) -> str:
    part = f" of shard {job['shard_index']}/{job['num_shards']}" if job["num_shards"] > 1 else ""
    return f"{job['rank']}/{job['world_size']}{part}"


def _epoch(job: dict[str, Any]) -> str:
    return f"{job['epoch']} ({100 * job['epoch_fraction']:.0f} %)" if "epoch" in job else "-"


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:.0f}"


def _bytes_per_s(per_s: float | None) -> str:
    return "-" if per_s is None else f"{format_bytes(int(per_s))}/s"


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.0f} %"


def duration(seconds: float) -> str:
    """A duration, rounded for people."""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.0f} s"
    if whole < 3600:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
