"""``prepserver status``: the daemon's state as tables for people or JSON for machines."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from prepserver.cli import exits
from prepserver.cli.ask import AskError, ask_status


def status(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    try:
        found = ask_status(arguments.runtime_dir)
    except AskError as e:
        sys.stderr.write(f"prepserver status: {e}\n")
        return e.code
    if arguments.json:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        _show(found, Console())  # rich leaves colours out where NO_COLOR is set or stdout is no terminal
    return exits.OK


def _show(found: dict[str, Any], console: Console) -> None:
    memory = found["memory"]
    console.print(
        f"prepserver {found['version']} (pid {found['pid']}) in {found['runtime_dir']}: {found['state']} for "
        f"{_time(found['uptime_s'])}, {found['rows_per_s']:.0f} rows/s, rings {_mib(memory['rings_bytes'])} of "
        f"{_mib(memory['budget_bytes'])}, {found['kernels']['path']} kernels ({found['kernels']['why']})",
        highlight=False,
    )
    _table(
        console, "workers", ("n", "pid", "state", "rows", "bad", "busy", "restarts"),
        [
            (w["number"], w["pid"] or "-", w["state"], w.get("rows", 0), w.get("bad_rows", 0),
             f"{100 * w.get('busy_fraction', 0):.0f} %", w["restarts"])
            for w in found["workers"]
        ],
    )  # fmt: skip
    _table(
        console, "jobs", ("id", "job", "rank", "pid", "stream", "lane", "batch", "batches", "ready", "waited", "for"),
        [
            (j["id"], j["name"], _rank(j), j["pid"], j["stream"], j["lane"], j["batch_size"],
             j["batches"], j["ready_rows"], f"{j['wait_s']:.1f} s", _time(j["attached_s"]))
            for j in found["jobs"]
        ],
    )  # fmt: skip
    _table(
        console, "streams", ("id", "samples", "position", "ready up to", "made", "delivered", "sharing", "lanes"),
        [
            (s["id"], s["samples"], s["position"], s["ready_upto"], s["rows_filled"], s["rows_delivered"],
             f"{s['sharing_factor']:.2f}",
             ", ".join(map(_lane, s["lanes"])))
            for s in found["streams"]
        ],
    )  # fmt: skip
    _table(
        console, "GPUs", ("n", "name", "busy", "memory"),
        [
            (g["index"], g["name"], "-" if g["utilisation_percent"] is None else f"{g['utilisation_percent']} %",
             f"{_mib(g['memory_used_bytes'])} of {_mib(g['memory_total_bytes'])}")
            for g in found.get("gpus", [])
        ],
    )  # fmt: skip
    for source, indices in found["quarantined"].items():
        console.print(f"quarantined in source {source[:12]}: samples {', '.join(map(str, indices))}", highlight=False)


def _lane(lane: dict[str, Any]) -> str:
    views = f" of {lane['views']} views" if lane["views"] > 1 else ""
    return f"{lane['id']}: {lane['rows']} rows{views}, {_mib(lane['ring_bytes'])}, {lane['jobs']} jobs"


def _table(console: Console, title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    if not rows:
        return
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*map(str, row))
    console.print(table)


def _rank(job: dict[str, Any]) -> str:
    part = f" of shard {job['shard_index']}/{job['num_shards']}" if job["num_shards"] > 1 else ""
    return f"{job['rank']}/{job['world_size']}{part}"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / 2**20:.0f} MiB"


def _time(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.0f} s"
    if whole < 3600:
        return f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
