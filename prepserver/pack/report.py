"""Telling how packing goes: a bar on a terminal, a line now and then elsewhere. Only to stderr."""

from __future__ import annotations

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

_LINE_EVERY_S = 10.0
_BAR_EVERY_S = 0.1


class Report(Protocol):
    """What packing tells."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def begin(self, total: int, done: int) -> None:
        """Transcoding begins; `done` of `total` samples are there from earlier runs."""

    def progress(self, done: int) -> None:
        """So many samples are done; called often."""

    def end(self) -> None:
        """Nothing more comes."""


class Silent:
    """Tells nothing but what must be read."""

    def say(self, text: str) -> None:
        """As `Report.say`."""
        sys.stderr.write(f"{text}\n")

    def begin(self, total: int, done: int) -> None:
        """As `Report.begin`."""

    def progress(self, done: int) -> None:
        """As `Report.progress`."""

    def end(self) -> None:
        """As `Report.end`."""


class Lines(Silent):
    """A line every ten seconds, for logs."""

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


class Bar:
    """A bar with rate and time left."""

    def __init__(self) -> None:
        # No thread of rich's: processes are forked, and a thread may hold a lock just then.
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
    """The report that suits what stderr is."""
    if quiet:
        return Silent()
    return Bar() if sys.stderr.isatty() else Lines()
