"""Output for humans: figures, and tables as wide as the terminal or, in a pipe, as their contents."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from prepserver.config import format_bytes
from prepserver.telemetry.logs import printable

_PIPE_WIDTH = 100_000
_LEAST_CHARS = 7  # of a column that gives way
_NAME_CHARS = 24  # before that, columns that can be dropped are


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


@dataclass(frozen=True, slots=True)
class _Rows:
    """One line per row; in a terminal that is too narrow for all columns, a paragraph with the columns' names.

    Columns in `dropped` are left out of the lines if that makes room.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    gives_way: str
    dropped: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for left_out, least_chars in (((), _NAME_CHARS), (self.dropped, _LEAST_CHARS)):
            made = Table(title=Text(self.title), title_justify="left", box=None, pad_edge=False)
            width, kept = -2, [column not in left_out for column in self.columns]
            for column, *cells in itertools.compress(zip(self.columns, *self.rows, strict=True), kept):
                gives_way, longest = column == self.gives_way, max(map(cell_len, cells), default=0)
                least = min(least_chars, longest) if gives_way else longest
                width += 2 + max(cell_len(column), least)
                made.add_column(Text(column), no_wrap=not gives_way, overflow="ellipsis", min_width=least)
            if width <= options.max_width:
                for row in self.rows:
                    shown = itertools.compress(row, kept)
                    made.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in shown))
                yield made
                return
        yield Text(self.title, "italic")
        for row in self.rows:
            named = zip(self.columns, row, strict=True)
            text = Text(", ".join(f"{column} {cell}" for column, cell in named if cell != "-"))
            yield Padding(text, (0, 0, 0, 2))


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, gives_way: str, dropped: Sequence[str] = ()
) -> RenderableType:
    """A table whose column `gives_way` is shortened first if the terminal is too narrow, but not to nothing.

    Columns in `dropped` are there only if the terminal has room.
    """
    # Names come from other users, and must not control the terminal.
    return _Rows(title, columns, [[printable(str(cell)) for cell in row] for row in rows], gives_way, dropped)


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
