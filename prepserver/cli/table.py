"""Output for humans: figures, and tables as wide as the terminal or, in a pipe, as their contents."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from prepserver.config import format_bytes
from prepserver.telemetry.logs import printable

_PIPE_WIDTH = 100_000
_LEAST_CHARS = 7


def console() -> Console:
    """Writes to stdout; rich omits colours if NO_COLOR is set or stdout is not a terminal."""
    is_terminal = sys.stdout.isatty()
    return Console(
        file=None if is_terminal else cast(IO[str], _Unpadded()), width=None if is_terminal else _PIPE_WIDTH,
        markup=False, highlight=False, emoji=False,
    )  # fmt: skip


class _Unpadded:
    """stdout without the spaces with which rich pads lines, which `grep`, `diff` and e-mails would keep."""

    encoding = property(lambda _: sys.stdout.encoding)

    def write(self, text: str) -> int:
        return sys.stdout.write(re.sub(" +$", "", text, flags=re.MULTILINE))

    def flush(self) -> None:
        sys.stdout.flush()


def print_json(value: Any, indent: int | None = 2) -> None:
    """Writes a value to stdout as JSON."""
    sys.stdout.write(json.dumps(value, indent=indent) + "\n")
    sys.stdout.flush()


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, gives_way: str) -> Table:
    """One line per row; the column `gives_way` is shortened first if the terminal is too narrow, but not to nothing."""
    made = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    for place, column in enumerate(columns):
        longest = max((len(str(row[place])) for row in rows), default=0)
        least = min(_LEAST_CHARS, longest) if column == gives_way else None
        made.add_column(Text(column), no_wrap=column != gives_way, overflow="ellipsis", min_width=least)
    for row in rows:
        # Names come from other users, and must not control the terminal.
        made.add_row(*(Text(printable(str(cell)), no_wrap=True, overflow="ellipsis") for cell in row))
    return made


def figure(value: float | None, form: str = ".0f") -> str:
    """A number in one of Python's formats; a dash if it is unknown."""
    return "-" if value is None else format(value, form)


def percent(fraction: float | None) -> str:
    """A fraction in percent; a dash if it is unknown."""
    return "-" if fraction is None else f"{100 * fraction:.0f} %"


def gpu_memory(gpu: Mapping[str, Any]) -> str:
    """How much of a GPU's memory is in use; a dash if it has none of its own."""
    used, total = gpu["memory_used_bytes"], gpu["memory_total_bytes"]
    return "-" if used is None else f"{format_bytes(used)} of {format_bytes(total)}"


def duration(seconds: float) -> str:
    """A duration in its two largest units."""
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
