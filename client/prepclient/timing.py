"""Where the time of a training loop goes, as a table."""

from __future__ import annotations

from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from prepclient.session import Totals


class Parts(NamedTuple):
    """Seconds of a loop, from its first batch on."""

    loading: float  # it waited for rows
    copying: float  # it waited for ready rows to be copied
    computing: float  # its own time between two batches of an epoch, including the device's
    rest: float  # anything else: attaching, evaluation, checkpoints, and waiting for another client

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
    head = f"{totals.batches} steps, {totals.images} samples, {rate:.0f} samples/s over {whole_s:.1f} s"
    lines = [head, *(line.rstrip() for line in captured.get().splitlines())]
    return "\n".join([*lines, *spoken(verdict)])


def spoken(verdict: dict[str, Any] | None) -> list[str]:
    """The verdict, why, and what to do next, one line each; nothing without a verdict."""
    if verdict is None:
        return []
    lines = [f"Verdict: {verdict['verdict']}", f"Why: {verdict['why']}"]
    return [*lines, f"Next: {verdict['next']}"] if verdict["next"] else lines
