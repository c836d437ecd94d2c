"""Shows progress: of a training loop as a bar; of a listing as a counting line on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status

from prepclient.session import Totals

log = logging.getLogger("prepclient")

_LOG_EVERY_S = 10.0


class ScanProgress:
    """A line that appears with the first report and disappears at `close`. `name` names the source."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._status: Status | None = None
        self._next_log_s = 0.0

    def __call__(self, samples: int) -> None:
        """Shows that `samples` have been found so far."""
        text = f"listing {self._name}: {samples:,} samples"
        if sys.stderr.isatty():
            if self._status is None:
                self._status = Console(stderr=True).status(text)
                self._status.start()
            self._status.update(text)
        elif time.monotonic() >= self._next_log_s:
            log.info("%s", text)
            self._next_log_s = time.monotonic() + _LOG_EVERY_S

    def close(self) -> None:
        """Removes the line."""
        if self._status is not None:
            self._status.stop()
            self._status = None


def with_bar(
    begin: Callable[[], Any], epochs: int, totals: Callable[[], Totals], batches_per_epoch: Callable[[], int]
) -> Iterator[Any]:
    """Yields all batches of some epochs, which `begin` begins, and shows a bar; see `PrepClient.progress`.

    What the client has received in total comes from `totals`; `batches_per_epoch` is asked after the first `begin`.
    """
    started_s, had = time.monotonic(), totals()
    # In a notebook, rich would draw with ipywidgets, or nothing without them, and would take over stdout: what a loop
    # prints without a newline then recurses until Python gives up. So there the bar is text, as tqdm's.
    in_notebook = Console().is_jupyter
    console = Console(stderr=True, force_jupyter=False, force_terminal=in_notebook or None)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
               TextColumn("{task.fields[speed]}"))  # fmt: skip
    with Progress(
        *columns, console=console, redirect_stdout=not in_notebook, redirect_stderr=not in_notebook,
        refresh_per_second=2 if in_notebook else 10,
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=None, speed="")
        for number in range(1, epochs + 1):
            batches = begin()
            if number == 1:  # may be the rest of an epoch, and only this one has replays for `headspace`
                bar.update(task, total=len(batches) + (epochs - 1) * batches_per_epoch())
            bar.update(task, description=f"epoch {number}/{epochs}")
            for batch in batches:
                yield batch
                del batch  # frees its memory for the next one
                now = totals()
                images_per_s = (now.images - had.images) / max(time.monotonic() - started_s, 1e-9)
                loop_ns = now.wait_ns + now.copy_ns + now.own_ns
                waits = 100 * now.wait_ns / loop_ns if loop_ns else 0.0
                bar.update(task, advance=1, speed=f"{images_per_s:.0f} samples/s, waits {waits:.0f} %")
