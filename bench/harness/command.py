"""The command line of a benchmark that writes one file of figures: measure them, or show those of an earlier run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from compare import OUT, load, save
from fingerprint import line
from tables import Sheet, show

Figures = dict[str, Any]


def run(
    name: str,
    description: str,
    measure: Callable[[argparse.Namespace], Figures],
    sheets: Callable[[Figures], Sequence[Sheet]],
    *,
    takes_data: bool = True,
    takes_workers: bool = True,
    remarks: Callable[[Figures], Iterable[str]] = lambda _figures: (),
) -> None:
    """Parses the arguments, measures or loads, and prints tables.

    Args:
        name: Of the file of figures, ``bench/out/NAME.json``.
        description: One line for ``--help``.
        measure: The measurement; is given the arguments, of which `smoke` says that it shall be over in a minute.
        sheets: Figures as tables.
        takes_data: Whether there is a ``--data``.
        takes_workers: Whether there is a ``--workers``.
        remarks: Lines below the tables.
    """
    parser = argparse.ArgumentParser(description=description)
    if takes_data:
        parser.add_argument("--data", help="a folder of JPEGs")
    if takes_workers:
        parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--smoke", action="store_true", help="as short as may be: does it run")
    parser.add_argument("--markdown", action="store_true", help="tables as Markdown")
    parser.add_argument("--json", type=Path, default=OUT / f"{name}.json", help="where the figures go")
    parser.add_argument("--show", type=Path, metavar="FILE", help="measure nothing, show the figures of this file")
    arguments = parser.parse_args()
    if arguments.show:
        figures = load(arguments.show)
    else:
        figures = measure(arguments)
        save(figures, arguments.json)
    print(line(figures["machine"]))
    show(sheets(figures), markdown=arguments.markdown)
    for remark in remarks(figures):
        print(remark)
