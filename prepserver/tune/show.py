"""Shows the measurements: a table with bars, the recommendation, a file of settings, and a plot."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.bar import Bar
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from prepserver.telemetry.logs import printable
from prepserver.tune.measure import Job
from prepserver.tune.points import FED, Measured, Point, rates_of

_BAR = 30
_BUSY = 0.1  # a point whose rates vary by a larger fraction was measured on a busy machine


def shown(measured: Measured, chosen: Point, job: Job) -> Iterator[RenderableType]:
    """The table and the recommendation."""
    rates = rates_of(measured)
    lines = Table(box=None, pad_edge=False)
    for name in ("workers", "cache", "packed", "prefetch"):
        lines.add_column(name, no_wrap=True)
    lines.add_column("samples/s", justify="right", no_wrap=True)
    lines.add_column("", max_width=_BAR)  # shrinks on a narrow terminal
    lines.add_column("", no_wrap=True)
    most = max(rates.values())
    for point in sorted(rates, key=_by_form):
        bar = Bar(most, 0, rates[point], color="green" if point == chosen else "cyan")
        mark = Text("recommended" if point == chosen else "", "bold green")
        cells = (str(point.workers), point.cache or "-", "yes" if point.packed else "-", str(point.prefetch or "-"))
        lines.add_row(*cells, f"{rates[point]:,.0f}", bar, mark)
    yield lines
    yield Text("")
    yield from (Text(line) for line in advice(measured, chosen, job))


def _by_form(point: Point) -> tuple[object, ...]:
    return point.form, point.prefetch, point.workers


def _by_point(measured: Measured) -> dict[Point, list[float]]:
    found: defaultdict[Point, list[float]] = defaultdict(list)
    for point, rate in measured:
        found[point].append(rate)
    return found


def _half_range(found: Sequence[float]) -> float:
    """Half of the difference between the highest and the lowest, as a fraction of the highest."""
    return (max(found) - min(found)) / max(found) / 2


def advice(measured: Measured, chosen: Point, job: Job) -> Iterator[str]:
    """The recommendation in words."""
    rates, found = rates_of(measured), _by_point(measured)[chosen]
    yield f"Start: prepserver start --workers {chosen.workers}, or PrepClient(..., workers={chosen.workers})"
    arguments = [f'cache="{chosen.cache}"'] if chosen.cache else []
    arguments += [f"prefetch={chosen.prefetch}"] if chosen.prefetch else []
    if arguments:
        yield f"In the script: PrepClient(..., {', '.join(arguments)})"
    if chosen.packed:
        place = (
            shlex.quote(printable(job.source.location)) if job.source.location else "SOURCE"
        )  # perhaps from another user's job
        yield f'Once: prepserver pack {place} OUT, then use Packed("OUT") in the script'
    rate, wanted = rates[chosen], job.wanted_per_s
    expect = f"Expect: {rate:,.0f} samples/s" + (f" (±{100 * _half_range(found):.0f} %)" if len(found) > 1 else "")
    if wanted == float("inf"):
        yield f"{expect}, if your training step is fast enough (pass its duration by --step-ms or --step)"
    elif rate >= FED * wanted:
        yield f"{expect}, all that a step of {1e3 * job.step_s:g} ms can take"
    else:
        yield (
            f"{expect}; a step of {1e3 * job.step_s:g} ms could take {wanted:,.0f}, so the loop "
            f"waits {100 * (1 - rate / wanted):.0f} % of its time. More cores or cheaper ops help"
        )
    if _half_range(found) > _BUSY:
        yield (
            f"Uncertain: this configuration gave {min(found):,.0f} to {max(found):,.0f} samples/s. Measure again on an "
            "idle machine, or longer (--seconds)"
        )


def plain(measured: Measured, chosen: Point, job: Job, skipped: Mapping[Point, str], spent_s: float) -> dict[str, Any]:
    """Everything as plain values, for JSON."""
    points = {
        point: asdict(point) | {"images_per_s": round(rate, 1), "measured_per_s": [round(each, 1) for each in found]}
        for (point, found), rate in zip(_by_point(measured).items(), rates_of(measured).values(), strict=True)
    }
    return {
        "choice": points[chosen],
        "points": [*points.values()],
        "not_measured": [asdict(point) | {"why": why} for point, why in skipped.items()],
        "wanted_images_per_s": None if job.wanted_per_s == float("inf") else round(job.wanted_per_s, 1),
        "advice": list(advice(measured, chosen, job)),
        "spent_s": round(spent_s, 1),
    }


def settings(chosen: Point, job: Job, measured: Measured) -> str:
    """The daemon's part of the recommendation, for ``prepserver start --config``; the script's part as comments."""
    comments = "".join(f"# {line}\n" for line in advice(measured, chosen, job))
    return f"# Measured by prepserver tune.\n{comments}workers = {chosen.workers}\n"


def plot(path: Path, rates: Mapping[Point, float], chosen: Point, job: Job) -> None:
    """Draws samples/s by workers, a line for each form, into a PNG or an SVG.

    Raises:
        ImportError: matplotlib is not installed.
        OSError, ValueError: The file cannot be written, or its ending is unknown.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    lines: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for point in sorted(rates, key=_by_form):
        lines[str(point).partition(", ")[2]].append((point.workers, rates[point]))
    for form, line in lines.items():
        axes.plot(*zip(*line, strict=True), marker="o", label=form or "unchanged")
    axes.plot([chosen.workers], [rates[chosen]], "k*", markersize=14, label=f"recommended: {chosen}")
    if job.wanted_per_s != float("inf"):
        axes.axhline(job.wanted_per_s, color="grey", linestyle="--", label="all that the step can take")
    axes.set_xlabel("workers")
    axes.set_ylabel("samples/s")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    figure.savefig(path)
