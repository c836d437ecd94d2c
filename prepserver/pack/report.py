"""Reports the progress of packing on stderr: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import math
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class Report:
    """Prints notes and, every `every_s`, the progress; no progress by default."""

    def __init__(self, every_s: float = math.inf) -> None:
        self._every_s = every_s

    def say(self, text: str) -> None:
        """Print a line that stays."""
        sys.stderr.write(f"{text}\n")

    def begin(self, total: int, done: int) -> None:
        """Note that transcoding begins; `done` of `total` samples are from earlier runs."""
        self._total, self._first, self._done = total, done, done
        self._begun_s = self._shown_s = time.monotonic()

    def progress(self, done: int) -> None:
        """Note how many samples are done; called often."""
        now_s, self._done = time.monotonic(), done
        if now_s - self._shown_s >= self._every_s and done > self._first:
            self._shown_s = now_s
            self._show((done - self._first) / (now_s - self._begun_s))

    def _show(self, rate: float) -> None:
        left_s = round((self._total - self._done) / rate)
        left = f"{left_s // 60} min {left_s % 60} s left"
        self.say(f"packed {self._done} of {self._total}, {rate:.0f} samples/s, {left}")

    def end(self) -> None:
        """Note that packing has ended."""


class _Bar(Report):
    """A progress bar with rate and remaining time."""

    def __init__(self) -> None:
        super().__init__(every_s=0.1)
        # No auto_refresh: its thread may hold a lock while processes are forked.
        self._bar = Progress(
            TextColumn("packing"),
            BarColumn(),
            MofNCompleteColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]:.0f} samples/s"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            auto_refresh=False,
        )

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, total: int, done: int) -> None:
        super().begin(total, done)
        self._task = self._bar.add_task("packing", total=total, completed=done, rate=0.0)
        self._bar.start()

    def _show(self, rate: float) -> None:
        self._bar.update(self._task, completed=self._done, rate=rate)
        self._bar.refresh()

    def end(self) -> None:
        self._bar.update(self._task, completed=self._done)
        self._bar.stop()


def report_for(quiet: bool) -> Report:
    """Return the report that suits stderr."""
    if quiet:
        return Report()
    return _Bar() if sys.stderr.isatty() else Report(every_s=10.0)
