"""How near does `prepserver tune` come to the best point of a full sweep, and how long does it take?

`prepserver tune` with its defaults, then `tune --full`, on the photos as files with two pipelines. Then tune's choice
and the points that the full sweep found best are measured in turns, one after the other in each round; the best of them
is the one with the highest median. A ratio is taken within a round.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.harness.case import Case, Figures, Run, say
from bench.harness.server import run_cli
from bench.harness.tables import Sheet, reach, spread

_NEAR, _MINUTES = 0.95, 3.0
_BEST = 4  # of the full sweep: with more, luck would name one of them
_STEP_S = 2.0  # of each measurement, as tune's default
_PIPELINES = (
    "RandomResizedCrop(224), RandomHorizontalFlip()",
    "Resize(256), RandomCrop(224), RandomHorizontalFlip()",
)


def measure(run: Run) -> Figures:
    found = [_pipeline(run, words) for words in _PIPELINES[: 1 if run.smoke else None]]
    return {"photos": run.photos.what, "pipelines": found}


def _pipeline(run: Run, words: str) -> dict[str, Any]:
    from prepserver.tune.points import Point

    seconds = 0.1 if run.smoke else _STEP_S
    few = ["--most-workers", "1", "--batch-size", "32"] if run.smoke else []
    listed = run.listed(max(1600, len(run.photos.files)))
    tuned, full = (_tune(listed, words, seconds, *more) for more in (few, [*few, "--full"]))
    names = Point.__dataclass_fields__
    ranked = sorted(full["points"], key=lambda point: -float(point["images_per_s"]))
    wanted = [tuned["choice"], *ranked[:_BEST]]
    points = list(dict.fromkeys(Point(**{name: point[name] for name in names}) for point in wanted))
    rates = _in_turns(run, listed, words, seconds, points)
    say(f"{words}: {tuned['spent_s']} s, full {full['spent_s']} s")
    return {
        "ops": words, "choice": str(points[0]), "spent_s": tuned["spent_s"], "full_s": full["spent_s"],
        "per_s": {str(point): per_s for point, per_s in rates.items()},
    }  # fmt: skip


def _tune(listed: Path, words: str, seconds: float, *more: str) -> dict[str, Any]:
    arguments = ["tune", f'FileList("{listed}")', "--ops", words, "--seconds", str(seconds), "--json", *more]
    found: dict[str, Any] = json.loads(run_cli(*arguments))
    return found


def _in_turns(run: Run, listed: Path, words: str, seconds: float, points: list[Any]) -> Mapping[Any, list[float]]:
    from prepserver.config import auto_most_workers
    from prepserver.pack.expression import ops_from
    from prepserver.pipeline.sources import FileList
    from prepserver.tune.measure import Job, bench
    from prepserver.tune.points import Point

    job = Job(FileList(str(listed)), tuple(ops_from(words)), 256)
    rates: dict[Any, list[float]] = {point: [] for point in points}
    with bench(job, seconds, auto_most_workers(), lambda: False) as measured:
        for point in points:  # what a cache and packing are reckoned with
            measured.images_per_s(Point(point.workers))
        for number in range(run.rounds(5)):
            for point in points if number % 2 else reversed(points):
                rates[point].append(measured.images_per_s(point))
    return rates


def sheets(result: Figures) -> list[Sheet]:
    rates = Sheet(
        "Images/s of tune's choice and of the best point of the full sweep (median and min-max over rounds)",
        ("", "tune's choice", "the best", "ratio", "target", "reached"),
    )
    times = Sheet("Minutes", ("", "tune", "target", "reached", "full sweep"))
    for found in result["pipelines"]:
        per_s, minutes = found["per_s"], found["spent_s"] / 60
        mine, best = per_s[found["choice"]], per_s[_best(found)]
        ratios = [one / other for one, other in zip(mine, best, strict=True)]
        reached = reach(statistics.median(ratios), ">=", _NEAR)
        rates.rows.append((found["ops"], spread(mine), spread(best), spread(ratios, ".3f"), *reached))
        times.rows.append(
            (found["ops"], f"{minutes:.1f}", *reach(minutes, "<", _MINUTES), f"{found['full_s'] / 60:.1f}")
        )
    return [rates, times]


def _best(found: dict[str, Any]) -> str:
    per_s: dict[str, list[float]] = found["per_s"]
    return max(per_s, key=lambda point: statistics.median(per_s[point]))


def _remarks(result: Figures) -> list[str]:
    chosen = [f"{each['ops']}: tune chose {each['choice']}; best was {_best(each)}" for each in result["pipelines"]]
    return [result["photos"], *chosen]


CASE = Case("Tuning", measure, sheets, _remarks)
