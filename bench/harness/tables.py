"""Tables: rich on a terminal, plain text in a pipe, or Markdown."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

_HOLDS = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}
NO_TARGET = ("-", "-")
"""What `reach` would say of a figure that has no target."""


@dataclass(slots=True)
class Sheet:
    """A table as data: the first column holds names, the others hold figures."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", "| " + " | ".join(self.columns) + " |"]
        lines.append("|---" + "|---:" * (len(self.columns) - 1) + "|")
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"

    def rich(self) -> Table:
        table = Table(title=self.title, title_justify="left", title_style="bold")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left")
        for row in self.rows:
            table.add_row(*row)
        return table


def show(sheets: Sequence[Sheet], *, markdown: bool) -> None:
    if markdown:
        print("\n".join(sheet.markdown() for sheet in sheets))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)
    for sheet in sheets:
        console.print(sheet.rich())


def reach(found: float, sign: str, bound: float, form: str = "g") -> tuple[str, str]:
    """The target of a figure, and whether the figure reaches it: ``("< 100", "yes")``."""
    return f"{sign} {bound:{form}}", "yes" if _HOLDS[sign](found, bound) else "no"


def spread(values: Sequence[float | None], form: str = ".0f") -> str:
    """Median, and min-max where there are several: ``1512 (1490-1530)``; ``-`` for nothing."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle = f"{statistics.median(known):{form}}"
    return middle if len(known) == 1 else f"{middle} ({min(known):{form}}-{max(known):{form}})"
