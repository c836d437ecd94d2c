"""What limits each job, in lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


def verdicts(jobs: Iterable[dict[str, Any]]) -> Iterator[RenderableType]:
    """Verdict, why and what next of each job; ranks of one run with one verdict share an entry."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for job in jobs:
        if job.get("verdict"):
            found.setdefault((job["name"], job["verdict"]["verdict"]), []).append(job)
    for (name, _), ranks in found.items():
        # The rank that loses most speaks for the others.
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
    """The colour of a verdict; rich leaves it out where colours are not wanted."""
    if verdict["kind"] == "not enough data":
        return "dim"
    return "green" if verdict["is_fine"] else "bold yellow"
