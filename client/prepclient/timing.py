"""Where the time of a training loop goes: its parts as a table, and a progress bar over epochs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from prepclient.session import Totals

if TYPE_CHECKING:
    from prepclient.client import PrepClient


class Parts(NamedTuple):
    """Seconds of a loop, from its first batch on."""

    loading: float  # it waited for rows
    copying: float  # it waited for ready rows to be copied
    computing: float  # its own time between two batches of an epoch, including the device's
    rest: float  # anything else: attaching, and work between epochs, such as evaluation and checkpoints

    @classmethod
    def of(cls, totals: Totals, total_ns: int) -> Parts:
        """The parts of `total_ns`."""
        rest_ns = max(0, total_ns - totals.wait_ns - totals.copy_ns - totals.own_ns)
        return cls(totals.wait_ns / 1e9, totals.copy_ns / 1e9, totals.own_ns / 1e9, rest_ns / 1e9)


def render(totals: Totals, parts: Parts, verdict: dict[str, Any] | None) -> str:
    """The parts in total, per step and in per cent, and the verdict, as text."""
    whole_s, steps = sum(parts), max(1, totals.batches)
    table = Table(box=None, pad_edge=False)
    table.add_column("stage")
    for column in ("total s", "ms a step", "%"):
        table.add_column(column, justify="right")
    for name, spent_s in (*parts._asdict().items(), ("all", whole_s)):
        share = 100 * spent_s / whole_s if whole_s else 0.0
        table.add_row(name, f"{spent_s:.2f}", f"{1e3 * spent_s / steps:.2f}", f"{share:.1f}")
    console = Console(width=200, no_color=True, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(table)
    rate = totals.images / whole_s if whole_s else 0.0
    head = f"{totals.batches} steps, {totals.images} images, {rate:.0f} images/s over {whole_s:.1f} s"
    lines = [head, *(line.rstrip() for line in captured.get().splitlines())]
    return "\n".join([*lines, *spoken(verdict)])


def spoken(verdict: dict[str, Any] | None) -> list[str]:
    """The verdict, why, and what to do next, one line each; nothing without a verdict."""
    if verdict is None:
        return []
    lines = [f"Verdict: {verdict['verdict']}", f"Why: {verdict['why']}"]
    return [*lines, f"Next: {verdict['next']}"] if verdict["next"] else lines


def progress(train: PrepClient, epochs: int) -> Iterator[Any]:
    """Yields all batches of some epochs, and shows a bar on stderr; see `PrepClient.progress`."""
    started_s, had = time.monotonic(), train._loop.totals
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
               TextColumn("{task.fields[speed]}"))  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None, speed="")
        for number in range(1, epochs + 1):
            batches: Any = iter(train)
            if number == 1:  # may be the rest of an epoch, and only this one has replays for `headspace`
                later = (epochs - 1) * (len(train) - train._loop.headspace.extra)
                bar.update(task, total=len(batches) + later)
            bar.update(task, description=f"epoch {number}/{epochs}")
            for batch in batches:
                yield batch
                del batch  # frees its memory for the next one
                now = train._loop.totals
                images_per_s = (now.images - had.images) / max(time.monotonic() - started_s, 1e-9)
                loop_ns = now.wait_ns + now.copy_ns + now.own_ns
                waits = 100 * now.wait_ns / loop_ns if loop_ns else 0.0
                bar.update(task, advance=1, speed=f"{images_per_s:.0f} images/s, waits {waits:.0f} %")
