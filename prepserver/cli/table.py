"""Tables for people: as wide as the terminal, or as wide as their contents if stdout is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from prepserver.telemetry.logs import printable

_PIPE_WIDTH = 100_000


def console() -> Console:
    """Writes to stdout; rich omits colours if NO_COLOR is set or stdout is no terminal."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, markup=False, highlight=False, emoji=False)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, gives_way: str) -> Table:
    """One line per row.

    Args:
        title: Above the table.
        columns: Their headings.
        rows: Cells, shown as plain text.
        gives_way: The column that is shortened first if the terminal is too narrow.
    """
    made = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    for column in columns:
        made.add_column(Text(column), no_wrap=column != gives_way, overflow="ellipsis")
    for row in rows:
        # Paths come from strangers: none may control the terminal.
        made.add_row(*(Text(printable(str(cell)), no_wrap=True, overflow="ellipsis") for cell in row))
    return made
