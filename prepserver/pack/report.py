"""Reports how packing goes, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

_LINE_EVERY_S = 10.0
_BAR_EVERY_S = 0.1


class Report:
    """Reports only what must be read."""

    def say(self, text: str) -> None:
        """Print a line that stays."""
        sys.stderr.write(f"{text}\n")

    def begin(self, total: int, done: int) -> None:
        """Note that transcoding begins, with `done` of `total` samples there from earlier runs."""

    def progress(self, done: int) -> None:
        """Note how many samples are done; called often."""

    def end(self) -> None:
        """Note that nothing more comes."""


class Lines(Report):
    """Prints a line every ten seconds, for logs."""

    def begin(self, total: int, done: int) -> None:
        """As `Report.begin`."""
        self._total, self._first = total, done
        self._begun_s = self._said_s = time.monotonic()

    def progress(self, done: int) -> None:
        """As `Report.progress`."""
        now_s = time.monotonic()
        if now_s - self._said_s < _LINE_EVERY_S or done == self._first:
            return
        self._said_s = now_s
        rate = (done - self._first) / (now_s - self._begun_s)
        left_s = round((self._total - done) / rate)
        self.say(f"packed {done} of {self._total}, {rate:.0f} images/s, {left_s // 60} min {left_s % 60} s left")


class Bar(Report):
    """A bar with rate and time left."""

    def __init__(self) -> None:
        # No auto_refresh: its thread may hold a lock while processes are forked.
        self._bar = Progress(
            TextColumn("packing"),
            BarColumn(),
            MofNCompleteColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]:.0f} images/s"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            auto_refresh=False,
        )
        self._due_s = 0.0

    def say(self, text: str) -> None:
        """As `Report.say`."""
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def begin(self, total: int, done: int) -> None:
        """As `Report.begin`."""
        self._first = self._done = done
        self._begun_s = time.monotonic()
        self._task = self._bar.add_task("packing", total=total, completed=done, rate=0.0)
        self._bar.start()

    def progress(self, done: int) -> None:
        """As `Report.progress`."""
        now_s = time.monotonic()
        self._done = done
        if now_s < self._due_s:
            return
        self._due_s = now_s + _BAR_EVERY_S
        rate = (done - self._first) / max(now_s - self._begun_s, 1e-3)
        self._bar.update(self._task, completed=done, rate=rate)
        self._bar.refresh()

    def end(self) -> None:
        """As `Report.end`."""
        self._due_s = 0.0
        self.progress(self._done)
        self._bar.stop()


def report_for(quiet: bool) -> Report:
    """Return the report that suits stderr."""
    if quiet:
        return Report()
    return Bar() if sys.stderr.isatty() else Lines()
