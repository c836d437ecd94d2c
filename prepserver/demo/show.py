"""Shows the demo's progress, as a live table on a terminal and else as a line every few seconds, and its result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from prepserver.demo.phase import JobFigures, PhaseFigures
from prepserver.demo.processes import TrainingJob

_LINE_EVERY_S = 3.0
_RATE_OVER_S = 2.0
_PLAIN_WIDTH = 110


class Display:
    """Progress on stderr; rich decides about colour and cursor (a terminal, NO_COLOR)."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live: Live | None = None
        self._line_s = 0.0

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        self._console.print(text, soft_wrap=True)

    @contextlib.contextmanager
    def phase(self, title: str) -> Iterator[None]:
        """Prints the title, and shows a live table until the block ends if this is a terminal."""
        self._line_s = time.monotonic()
        self.say(f"\n{title}")
        if not self._console.is_terminal:
            yield
            return
        with Live(Text("starting the jobs: each imports torch"), console=self._console, transient=True) as self._live:
            yield
        self._live = None

    def look(self, jobs: Sequence[TrainingJob], age_s: float, sharing_factor: float | None) -> None:
        """Shows the progress of the jobs."""
        caption = f"{age_s:.0f} s"
        if sharing_factor is not None:
            caption += f", {sharing_factor:.2f} images delivered per image made"
        rows = [_cells(job) for job in jobs]
        if self._live is not None:
            table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
            for name in ("job", "images/s", "images", "loss"):
                table.add_column(name, justify="left" if name == "job" else "right", min_width=9)
            for row in rows:
                table.add_row(*row)
            self._live.update(table)
        elif time.monotonic() - self._line_s >= _LINE_EVERY_S:
            self._line_s = time.monotonic()
            said = [f"{job}: " + (f"{rate} images/s, loss {loss}" if n != "-" else loss) for job, rate, n, loss in rows]
            self.say("; ".join([f"  {caption}", *said]))


def _cells(job: TrainingJob) -> tuple[str, str, str, str]:
    if not job.reports:
        return job.name, "-", "-", "first batch" if job.device else "importing torch"
    last = job.reports[-1]
    since_s = max(last.at_s - _RATE_OVER_S, job.reports[0].at_s)
    window_s = last.at_s - since_s
    rate = job.images_between(since_s, last.at_s) / window_s if window_s else 0.0
    return job.name, f"{rate:.0f}", f"{last.images}", f"{last.loss:.3f}"


def print_result(shared: PhaseFigures, own: PhaseFigures, notes: Sequence[str]) -> None:
    """Prints the table on stdout."""
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
    """Rows of the table: what is measured, shared, own, ratio."""
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
