"""What the demo shows: a live table on a terminal, a line every few seconds elsewhere, and the result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from prepserver.demo.jobs import TrainingJob
from prepserver.demo.phase import JobFigures, PhaseFigures, View

_LINE_EVERY_S = 3.0
_RATE_OVER_S = 2.0
_PLAIN_WIDTH = 110


class Display:
    """Progress on stderr; rich decides about colour and cursor (a terminal, NO_COLOR)."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._line_s = 0.0
        self._title = ""

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, soft_wrap=True)

    @contextlib.contextmanager
    def phase(self, title: str) -> Iterator[None]:
        """What follows belongs to this phase."""
        self._title, self._line_s = title, time.monotonic()
        self.say(f"\n{title}")
        if not self._console.is_terminal:
            yield
            return
        with Live(Text("starting the jobs: each imports torch"), console=self._console, transient=True) as self._live:
            yield
        self._live = None

    def look(self, view: View) -> None:
        """Shows how the jobs are doing."""
        if self._live is not None:
            self._live.update(_live_table(view))
        elif time.monotonic() - self._line_s >= _LINE_EVERY_S:
            self._line_s = time.monotonic()
            self.say(_line(view))


def print_result(shared: PhaseFigures, own: PhaseFigures, notes: Sequence[str]) -> None:
    """The table, on stdout."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PLAIN_WIDTH, no_color=True)
    table = Table(box=box.SIMPLE_HEAD, title="What it costs", title_justify="left", title_style="bold")
    table.add_column("")
    for name in ("shared stream", "own DataLoaders", "ratio"):
        table.add_column(name, justify="right")
    for row in result_rows(shared, own):
        table.add_row(*row)
    console.print(Group(Text(""), table, *(Text(note, style="dim") for note in notes)))


def result_rows(shared: PhaseFigures, own: PhaseFigures) -> list[tuple[str, str, str, str]]:
    """(what, shared, own, ratio) of the table."""
    rows: list[tuple[str, str, str, str]] = []
    for number, (a, b) in enumerate(zip(shared.jobs, own.jobs, strict=True), 1):
        rows.append((f"job {number}, images/s", f"{a.images_per_s:.0f}", f"{b.images_per_s:.0f}", _ratio(a, b)))
    sums = [sum(j.images_per_s for j in phase.jobs) for phase in (shared, own)]
    rows.append(("all jobs, images/s", f"{sums[0]:.0f}", f"{sums[1]:.0f}", f"{sums[0] / sums[1]:.1f}x"))
    cpu = shared.cpu_s_per_image, own.cpu_s_per_image
    ratio = f"{cpu[1] / cpu[0]:.1f}x less" if cpu[0] else ""
    rows.append(("CPU ms per image delivered", f"{cpu[0] * 1e3:.2f}", f"{cpu[1] * 1e3:.2f}", ratio))
    rows.append(("images delivered per image made", f"{shared.sharing_factor:.2f}", f"{own.sharing_factor:.2f}", ""))
    first = [max(j.first_batch_s for j in phase.jobs) for phase in (shared, own)]
    rows.append(("time to first batch (slowest), s", f"{first[0]:.2f}", f"{first[1]:.2f}", ""))
    return rows


def _ratio(a: JobFigures, b: JobFigures) -> str:
    return f"{a.images_per_s / b.images_per_s:.1f}x" if b.images_per_s else "-"


def _live_table(view: View) -> Table:
    table = Table(box=box.SIMPLE_HEAD, caption=_caption(view), caption_justify="left")
    for name in ("job", "images/s", "images", "epoch", "loss"):
        table.add_column(name, justify="left" if name == "job" else "right", min_width=9)
    for job in view.jobs:
        if not job.progress.reports:
            table.add_row(job.name, "-", "-", "-", "importing torch" if not job.progress.device else "first batch")
            continue
        last = job.progress.reports[-1]
        table.add_row(job.name, f"{_rate(job):.0f}", f"{last.images}", f"{last.epochs + 1}", f"{last.loss:.3f}")
    return table


def _line(view: View) -> str:
    rates = " ".join(f"{_rate(job):.0f}" if job.progress.reports else "-" for job in view.jobs)
    losses = " ".join(f"{job.progress.reports[-1].loss:.2f}" if job.progress.reports else "-" for job in view.jobs)
    return f"  {_caption(view)}; images/s by job: {rates}; loss: {losses}"


def _caption(view: View) -> str:
    factor = f", {view.sharing_factor:.2f} images delivered per image made" if view.sharing_factor is not None else ""
    return f"{view.age_s:.0f} s{factor}"


def _rate(job: TrainingJob) -> float:
    last = job.progress.reports[-1].at_s
    since = max(last - _RATE_OVER_S, job.progress.reports[0].at_s)
    return job.progress.images_between(since, last) / (last - since) if last > since else 0.0
