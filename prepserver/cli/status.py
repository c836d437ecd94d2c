"""``prepserver status``: the daemon's state as tables or JSON."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from prepserver.cli import exits
from prepserver.cli.ask import ask_status
from prepserver.cli.table import console, duration, figure, gpu_memory, percent, print_json, table
from prepserver.config import format_bytes
from prepserver.protocol.places import user_name
from prepserver.telemetry.logs import counted

_HELD_UP = 0.1  # a remote worker that waits for the network for this fraction of its time is worth a line


def status(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    found = ask_status(arguments.runtime_dir)
    if arguments.json:
        print_json(found)
    else:
        console().print(*tables(found), sep="\n")
    return exits.OK


def tables(found: dict[str, Any]) -> Iterator[RenderableType]:
    """The daemon's state as lines of text and tables."""
    memory = found["memory"]
    yield Text(
        f"prepserver {found['version']} (pid {found['pid']}) in {found['runtime_dir']}: {found['state']} for "
        f"{duration(found['uptime_s'])}, {found['rows_per_s']:.0f} samples/s, rings "
        f"{format_bytes(memory['rings_bytes'])} of {format_bytes(memory['budget_bytes'])}, "
        f"{found['kernels']['path']} kernels ({found['kernels']['why']})"
    )
    everywhere = [s["id"] for s in found["streams"] if s["reads_everywhere"]]
    yield Text(_sandbox(found["sandbox"], everywhere))
    if found["workers"]:
        yield table(
            "workers", ("n", "pid", "state", "busy", "images", "bad", "restarts"),
            [
                (w["number"], w["pid"] or "-", w["state"], percent(w.get("busy_fraction")), w.get("rows", 0),
                 w.get("bad_rows", 0), w["restarts"])
                for w in found["workers"]
            ],
            gives_way="state",
        )  # fmt: skip
    yield from _remote(found)
    if found["jobs"]:
        yield table(
            "jobs", ("id", "job", "user", "pid", "rank", "stream", "epoch", "samples/s", "waits", "for", "ready"),
            [
                (j["id"], j["name"], user(j), j["pid"] or "-", _rank(j), j["stream"], _epoch(j),
                 figure(j.get("images_per_s")), percent(j.get("wait_fraction")), j.get("waits_for") or "-",
                 j["ready_rows"])
                for j in found["jobs"]
            ],
            gives_way="job", dropped=("user", "pid"),
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
                 f"{c['rows']} of {c['samples']}", format_bytes(c["bytes"]), percent(c["hit_rate"]), c["damaged"])
                for c in found["caches"]
            ],
            gives_way="dataset",
        )  # fmt: skip
    if apart := [str(s["id"]) for s in found["streams"] if s.get("apart")]:
        yield Text(
            f"streams {', '.join(apart)} are kept apart: their pipelines are too slow to share with jobs of other users"
        )
    if found.get("gpus"):
        yield table(
            "GPUs", ("n", "name", "busy", "memory"),
            [
                (g["index"], g["name"], "-" if g["utilisation_percent"] is None else f"{g['utilisation_percent']} %",
                 gpu_memory(g))
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
            yield Text(f"{engine['name']} and its workers are down: {engine['why']}")
    if remote := [w for w in found["workers"] if w.get("host")]:
        yield table(
            "remote workers", ("n", "host", "sends", "held up"),
            [
                (w["number"], w["host"], _bytes_per_s(w["received_bytes_per_s"]), percent(w["held_fraction"]))
                for w in remote
            ],
            gives_way="host",
        )  # fmt: skip
    if held := [w["number"] for w in remote if (w["held_fraction"] or 0.0) > _HELD_UP]:
        yield Text(
            f"remote workers {', '.join(map(str, held))} wait for the network, which is slower than they are: "
            "`prepserver doctor --engine ray` measures it"
        )
    whys = {(each["stream"], each["why"]) for w in remote for each in w["cannot_read"]}
    for stream, why in sorted(whys):
        yield Text(f"stream {stream} has fewer remote workers: {why}")


def _sandbox(sandbox: dict[str, str], everywhere: list[int]) -> str:
    if sandbox["mode"] == "off":
        return "sandbox: off"
    missing = f"; missing: {sandbox['missing']}" if sandbox["missing"] else ""
    open_ = f"; workers can read all files, because streams {', '.join(map(str, everywhere))} need it"
    return f"sandbox: {sandbox['parts']}{missing}{open_ if everywhere else ''}"


def _lane(lane: dict[str, Any]) -> str:
    views = f" of {', '.join(lane['fields'])}" if len(lane["fields"]) > 3 else ""
    return (
        f"{lane['id']}: {lane['rows']} rows{views}, {format_bytes(lane['ring_bytes'])}, {counted(lane['jobs'], 'job')}"
    )


def user(job: dict[str, Any]) -> str:
    """Name of the user who runs a job; the uid if it has none."""
    return user_name(job["uid"]) or str(job["uid"])


def _rank(job: dict[str, Any]) -> str:
    part = f" of shard {job['shard_index']}/{job['num_shards']}" if job["num_shards"] > 1 else ""
    return f"{job['rank']}/{job['world_size']}{part}"


def _epoch(job: dict[str, Any]) -> str:
    return f"{job['epoch']} ({100 * job['epoch_fraction']:.0f} %)" if "epoch" in job else "-"


def _bytes_per_s(per_s: float | None) -> str:
    return "-" if per_s is None else f"{format_bytes(int(per_s))}/s"


def verdicts(jobs: Iterable[dict[str, Any]]) -> Iterator[RenderableType]:
    """Verdict, reason and next step for each job; ranks of one job with the same verdict share an entry."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for job in jobs:
        if job.get("verdict"):
            found.setdefault((job["name"], job["verdict"]["verdict"]), []).append(job)
    for (name, _), ranks in found.items():
        # The figures are those of the rank that loses most.
        verdict = max((rank["verdict"] for rank in ranks), key=lambda each: float(each["lost_fraction"]))
        numbers = f" (ranks {', '.join(str(rank['rank']) for rank in ranks)})" if len(ranks) > 1 else ""
        lines = Table.grid(padding=(0, 1))
        lines.add_column(no_wrap=True, style="bold")
        lines.add_column()
        lines.add_row("  Verdict:", Text(verdict["verdict"], style_of(verdict)))
        lines.add_row("  Why:", Text(". Also: ".join([verdict["why"], *filter(None, [", ".join(verdict["also"])])])))
        if verdict["next"]:
            lines.add_row("  Next:", Text(verdict["next"]))
        yield Group(Text(f"job {name}{numbers}", "bold"), lines)


def style_of(verdict: dict[str, Any]) -> str:
    """The colour of a verdict; rich drops it where NO_COLOR or a pipe asks for none."""
    if verdict["kind"] == "not enough data":
        return "dim"
    return "green" if verdict["is_fine"] else "bold dark_orange3"
