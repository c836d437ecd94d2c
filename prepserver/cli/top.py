"""``prepserver top``: jobs, workers and GPUs on one screen, what limits each job, and what to do about it."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from prepserver.cli import exits
from prepserver.cli.ask import AskError, ask_status
from prepserver.cli.keys import keys_at_once, pressed
from prepserver.cli.status import style_of, user, verdicts
from prepserver.cli.table import console, duration, figure, gpu_memory, percent, print_json
from prepserver.config import format_bytes
from prepserver.telemetry.logs import printable

_SORTS = ("wait", "samples/s", "lag", "job")
_GLYPHS = "█▓▒░·"
_COLOURS = ("cyan", "blue", "magenta", "yellow", "green")
_WIDE, _NARROW, _SMALL = 120, 100, 72  # terminals with fewer columns get fewer columns of the jobs' table
_JOB_CHARS = 24
_USER_CHARS = 10
_VERDICT_LINES = 8  # of one entry on a narrow terminal


@dataclass(frozen=True, slots=True)
class View:
    """What the screen shows besides the daemon's state."""

    sort: str = _SORTS[0]  # the column by which jobs are sorted, the highest first
    is_frozen: bool = False  # whether the screen stays as it is
    gone: str = ""  # why the daemon does not answer; empty if it does

    def after(self, key: str) -> View | None:
        """The view after a key; None to quit."""
        if key in ("q", "\x03", "\x04"):
            return None
        if key == "s":
            return replace(self, sort=_SORTS[(_SORTS.index(self.sort) + 1) % len(_SORTS)])
        return replace(self, is_frozen=not self.is_frozen) if key in ("f", " ") else self


def top(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    out = console()
    if arguments.json:
        for found in _answers(arguments.runtime_dir, None if arguments.once else arguments.every):
            print_json(found, indent=None)
        return exits.OK
    found = ask_status(arguments.runtime_dir)
    if arguments.once or not (out.is_terminal and sys.stdin.isatty()):
        out.print(screen(found, out.width if out.is_terminal else 120, None, View(), keys=False))
    else:
        _watch(arguments, out, found)
    return exits.OK


def _answers(runtime_dir: str | None, every_s: float | None) -> Iterator[dict[str, Any]]:
    """The daemon's state: once, or every `every_s` until Ctrl-C."""
    yield ask_status(runtime_dir)
    if every_s is None:
        return
    ended = threading.Event()

    def end(number: int, _frame: object) -> None:
        # No KeyboardInterrupt: Python reports and ignores one that is raised in a callback or a finalizer.
        ended.set()
        signal.signal(number, signal.SIG_DFL)  # a second Ctrl-C ends the process at once

    signal.signal(signal.SIGINT, end)
    while not ended.wait(every_s):
        yield ask_status(runtime_dir)


def _watch(arguments: argparse.Namespace, out: Console, found: dict[str, Any]) -> None:
    view, due_s = View(), time.monotonic() + arguments.every
    with keys_at_once(), Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(found, out.width, out.height, view), refresh=True)
            key = pressed(max(0.0, due_s - time.monotonic()))
            if key is not None:
                after = view.after(key or "q")  # the end of the input
                if after is None:
                    return
                view = after
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + arguments.every
                if not view.is_frozen:
                    try:
                        found = ask_status(arguments.runtime_dir)
                        view = replace(view, gone="")
                    except AskError as e:
                        view = replace(view, gone=str(e))


def screen(found: dict[str, Any], width: int, height: int | None, view: View, *, keys: bool = True) -> RenderableType:
    """The whole screen, in at most `height` lines if that is not None; with `keys` it names the keys."""
    head = [_head(found, view), _pool(found, width)]
    if found.get("gpus"):
        head.append(_gpus(found, width))
    jobs = _sorted(found["jobs"], view.sort)
    said = list(verdicts(job for job in jobs if job.get("verdict") and not job["verdict"]["is_fine"]))
    room = len(jobs)
    if height is not None:
        left = height - 10 - len(found.get("gpus") or [])
        room = max(1, min(room, left - (_VERDICT_LINES if said else 2)))
        said = said[: max(1, (left - room) // _VERDICT_LINES)]
    body: list[RenderableType] = [Text(f"q quit   s sort: {view.sort}   f freeze" if keys else "", "dim")]
    body.append(_jobs(jobs[:room], width) if jobs else Text("no jobs yet: each PrepClient that attaches appears here"))
    if len(jobs) > room:
        body.append(Text(f"... and {len(jobs) - room} more"))
    for each in said:
        body += [Text(""), each]
    known = {(job.get("verdict") or {}).get("kind") for job in jobs}
    if known and known <= {"healthy", "compute-bound"}:  # not while too little is known of any job
        body += [Text(""), Text("Only their own training steps limit the jobs.", style="green")]
    return Group(*head, *body)


def _head(found: dict[str, Any], view: View) -> RenderableType:
    text = Text(no_wrap=True, overflow="ellipsis")
    if view.gone:
        text.append(f"{view.gone}; retrying ... ", "bold red")
    elif view.is_frozen:
        text.append("FROZEN ", "bold dark_orange3")
    text.append(f"prepserver {found['version']}", "bold").append(
        f"  {found['state']} for {duration(found['uptime_s'])}  {found['rows_per_s']:,.0f} rows/s"
    )
    return text


def _pool(found: dict[str, Any], width: int) -> RenderableType:
    busy = [w["busy_fraction"] for w in found["workers"] if w.get("busy_fraction") is not None]
    mean = sum(busy) / len(busy) if busy else 0.0
    bar = max(8, min(40, width - 56))
    cores, memory = found.get("cores") or {}, found["memory"]
    lines = _bars()
    lines.add_row("workers", _bar(mean, bar), f"{100 * mean:.0f} % of {len(found['workers'])} busy")
    stages = _stages(found)
    if stages:
        lines.add_row("stages", _stage_bar(stages, bar), _legend(stages))
    if cores.get("busy") is not None:
        share = cores["busy"] / max(cores["usable"], 1e-9)
        lines.add_row("cores", _bar(share, bar), f"{cores['busy']:.1f} of {cores['usable']:g} busy, by all programs")
    share = memory["rings_bytes"] / max(memory["budget_bytes"], 1)
    sizes = f"{format_bytes(memory['rings_bytes'])} of {format_bytes(memory['budget_bytes'])}"
    lines.add_row("rings", _bar(share, bar), sizes)
    caches = found.get("caches")
    if caches and "caches_bytes" in memory:
        held, budget = memory["caches_bytes"], memory["caches_budget_bytes"]
        hits, misses = (sum(cache[name] for cache in caches) for name in ("hits", "misses"))
        sizes = f"{format_bytes(held)} of {format_bytes(budget)}, hits {percent(hits / max(1, hits + misses))}"
        lines.add_row("caches", _bar(held / max(budget, 1), bar), sizes)
    return lines


def _bars() -> Table:
    made = Table.grid(padding=(0, 1), expand=True)
    made.add_column(no_wrap=True, min_width=7)
    made.add_column(no_wrap=True)
    made.add_column(no_wrap=True, overflow="ellipsis", ratio=1)  # gives way
    return made


def _stages(found: dict[str, Any]) -> dict[str, float]:
    """Fractions of the workers' time by stage, over all streams, the largest first."""
    spent: dict[str, float] = {}
    for stream in found["streams"]:
        for name, ms in stream.get("stages_ms_per_sample", {}).items():
            spent[name] = spent.get(name, 0.0) + ms * (stream.get("rows_per_s") or 0.0)
    whole = sum(spent.values())
    ordered = sorted(spent.items(), key=lambda each: -each[1])
    return {name: ms / whole for name, ms in ordered if ms / whole >= 0.005} if whole > 0 else {}


def _bar(share: float, width: int) -> Text:
    filled = round(min(1.0, max(0.0, share)) * width)
    return Text(_GLYPHS[0] * filled, "cyan").append(_GLYPHS[4] * (width - filled), "dim")


def _stage_bar(stages: dict[str, float], width: int) -> Text:
    text, end, drawn = Text(), 0.0, 0
    for number, share in enumerate(stages.values()):
        end += share
        cells = round(end * width) - drawn
        drawn += cells
        text.append(_GLYPHS[number % 4] * cells, _COLOURS[number % len(_COLOURS)])
    return text


def _legend(stages: dict[str, float]) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for number, (name, share) in enumerate(stages.items()):
        text.append(f"{_GLYPHS[number % 4]} ", _COLOURS[number % len(_COLOURS)]).append(f"{name} {100 * share:.0f} %  ")
    return text


def _sorted(jobs: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    figure = {"wait": "wait_fraction", "samples/s": "images_per_s", "lag": "lag_rows"}.get(by, "")
    return sorted(jobs, key=lambda job: (-(job.get(figure) or 0.0), job["name"], job["rank"]))


def _jobs(jobs: list[dict[str, Any]], width: int) -> RenderableType:
    made = Table(box=None, pad_edge=False, width=width, expand=False)
    left_out = set() if width >= _WIDE else {"user", "pid"}
    if width < _NARROW:
        left_out |= {"rank", "lag"} if width >= _SMALL else {"rank", "lag", "shared", "ring"}
    chars = _JOB_CHARS if width >= _SMALL else _JOB_CHARS // 2
    for name in ("job", "user", "pid", "rank", "samples/s", "wait", "shared", "lag", "ring", "verdict"):
        if name in left_out:
            continue
        made.add_column(
            Text(name), no_wrap=True, overflow="ellipsis",
            justify="left" if name in ("job", "user", "ring", "verdict") else "right",
            ratio=1 if name == "verdict" else None,
        )  # fmt: skip
    for job in jobs:
        verdict, fill = job.get("verdict") or {"verdict": "-", "kind": "not enough data"}, job.get("ring_fill", 0.0)
        wait, name = job.get("wait_fraction"), job["name"]
        cells = {
            "job": Text(name if len(name) <= chars else name[: chars - 1] + "…"),
            "user": Text(printable(user(job))[:_USER_CHARS]),
            "pid": Text(str(job["pid"] or "-")),
            "rank": Text(f"{job['rank']}/{job['world_size']}"),
            "samples/s": Text(figure(job.get("images_per_s"), ",.0f")),
            "wait": Text(percent(wait), "bold dark_orange3" if (wait or 0) >= 0.05 else ""),
            "shared": Text(f"{job['sharing_factor']:.1f}x"),
            "lag": Text(f"{job.get('lag_rows', 0):,}"),
            "ring": _bar(fill, 10) if width >= _NARROW else Text(percent(fill)),
            "verdict": Text(verdict["verdict"], style_of(verdict) if verdict["verdict"] != "-" else "dim"),
        }
        made.add_row(*(cell for column, cell in cells.items() if column not in left_out))
    return made


def _gpus(found: dict[str, Any], width: int) -> RenderableType:
    lines = _bars()
    names = {job["pid"]: job["name"] for job in found["jobs"]}
    for gpu in found["gpus"]:
        share = gpu["utilisation_percent"]
        more = [gpu["name"], gpu_memory(gpu)]
        if gpu.get("power_w") is not None:
            more.append(f"{gpu['power_w']:.0f} W")
        if gpu.get("pcie_bytes_per_s") is not None:
            more.append(f"PCIe {format_bytes(int(gpu['pcie_bytes_per_s']))}/s")
        users = sorted({names.get(pid, f"pid {pid}") for pid in gpu.get("pids", ())})
        if users:
            more.append(", ".join(users))
        bar = Text("-") if share is None else _bar(share / 100, max(8, min(40, width - 56)))
        busy = "" if share is None else f"{share} %  "
        lines.add_row(f"GPU {gpu['index']:<3}", bar, busy + "  ".join(more))
    return lines
