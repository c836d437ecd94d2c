"""What limits each job, in lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.text import Text


def verdicts(jobs: Iterable[dict[str, Any]]) -> Iterator[Text]:
    """Verdict, why and what next of each job; ranks of one run with one verdict share an entry."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for job in jobs:
        if job.get("verdict"):
            found.setdefault((job["name"], job["verdict"]["verdict"]), []).append(job)
    for (name, _), ranks in found.items():
        # The rank that loses most speaks for the others.
        verdict = max((rank["verdict"] for rank in ranks), key=lambda each: float(each["lost_fraction"]))
        numbers = f" (ranks {', '.join(str(rank['rank']) for rank in ranks)})" if len(ranks) > 1 else ""
        text = Text().append(f"job {name}{numbers}\n", style="bold")
        text.append("  Verdict: ", style="bold").append(f"{verdict['verdict']}\n", style=style_of(verdict))
        text.append("  Why:     ", style="bold").append(verdict["why"])
        if verdict["also"]:
            text.append(f". Also: {', '.join(verdict['also'])}")
        if verdict["next"]:
            text.append("\n  Next:    ", style="bold").append(verdict["next"])
        yield text


def style_of(verdict: dict[str, Any]) -> str:
    """The colour of a verdict; rich leaves it out where colours are not wanted."""
    if verdict["kind"] == "not enough data":
        return "dim"
    return "green" if verdict["is_fine"] else "bold yellow"
