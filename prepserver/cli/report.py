"""``prepserver report`` and ``compare``: a page about one run of a job, and a table that compares two."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path
from typing import Any

from prepserver.audit.logfile import path_of
from prepserver.cli import exits
from prepserver.cli.joblog import find_log
from prepserver.cli.output import write_output
from prepserver.cli.run_page import call, data_of, page, reads_of, shown
from prepserver.cli.table import console, figure, print_json, table
from prepserver.telemetry.history import RUNS_KEPT, History, Track, figures, joined, paths, read


def report(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    history = _run(arguments.job, arguments)
    write_output(arguments.output, page(history).encode())
    return exits.OK


def compare(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    runs = [_run(name, arguments) for name in (arguments.a, arguments.b)]
    first, second = (history.by_images[0] for history in runs)
    found: dict[str, Any] = {
        "figures": _beside(figures(first.slices), figures(second.slices)),
        "stages": _beside(_stages(first), _stages(second)),
        "verdicts": [_verdict(first), _verdict(second)],
        "differs": {
            name: values
            for name, values in _beside(_settings(runs[0], first), _settings(runs[1], second)).items()
            if values[0] != values[1]
        },
    }
    if arguments.json:
        print_json(found)
        return exits.OK
    out, heads = console(), ("", "A", "B", "change")
    out.print(f"A: {arguments.a}\nB: {arguments.b}")
    out.print(table("figures", heads, [
        (name, *(("-" if value is None else shown(name, value)) for value in values), _change(name, *values))
        for name, values in found["figures"].items()
    ], gives_way=""))  # fmt: skip
    out.print(table("worker ms per row", heads, [
        (name, *(figure(value, ".3f") for value in values), _change("ms", *values))
        for name, values in found["stages"].items()
    ], gives_way=""))  # fmt: skip
    out.print(table("verdict", ("", "most of the time"), list(zip("AB", found["verdicts"], strict=True)), gives_way=""))
    if found["differs"]:
        rows = [(name, *values) for name, values in found["differs"].items() if name not in ("source", "pipeline")]
        rows += _calls_apart(first.reads, second.reads)
        out.print(table("what differs", ("", "A", "B"), rows, gives_way="B"))
    return exits.OK


def _run(name: str, arguments: argparse.Namespace) -> History:
    """The run that `name` means: ``JOB``, ``JOB~1`` for the run before it, or a page of `report`."""
    try:
        if name.endswith(".html"):
            history = data_of(Path(name).read_text(encoding="utf-8"))
        else:
            job, back = re.fullmatch(r"(.*?)(?:~(\d+))?", name, re.DOTALL).groups()  # type: ignore[union-attr]
            if int(back or 0) >= RUNS_KEPT:
                raise exits.CommandError(
                    f"{name!r}: only {RUNS_KEPT} runs of a job are kept, up to {job}~{RUNS_KEPT - 1}"
                )
            place = find_log(arguments, job)
            history = read(paths(path_of(place.folder, job, place.uid))[int(back or 0)])
    except FileNotFoundError as e:
        raise exits.CommandError(f"there is no run {name!r}: {e.filename} does not exist") from e
    except PermissionError as e:
        raise exits.CommandError(f"{e.filename}: only the daemon's own user may read it", exits.NO_PERMISSION) from e
    except (OSError, ValueError) as e:
        raise exits.CommandError(f"{name}: {e}") from e
    if not history.by_images:
        raise exits.CommandError(f"{name!r} has taken too few batches for a report; try again in a few seconds")
    return history


def _beside(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])}


def _calls_apart(a: dict[str, Any], b: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The sources and ops that differ; where both are of one kind, only the parameters that differ."""
    for name, key in (("source", "source"), ("pipeline", "op")):
        ours, theirs = ([each] if name == "source" else each or [] for each in (a.get(name), b.get(name)))
        kinds = [[call(each, key).partition("(")[0] for each in calls] for calls in (ours, theirs)]
        for tag, i, j, k, m in SequenceMatcher(None, kinds[0], kinds[1], autojunk=False).get_opcodes():
            for one, other in zip_longest(ours[i:j], theirs[k:m]):
                if one == other:
                    continue
                if tag == "equal" and isinstance(one, dict) and isinstance(other, dict):
                    same = [part for part in one if part != key and one[part] == other.get(part, ...)]
                    one, other = ({p: v for p, v in each.items() if p not in same} for each in (one, other))
                yield name, "-" if one is None else call(one, key), "-" if other is None else call(other, key)


def _change(name: str, a: float | None, b: float | None) -> str:
    if a is None or b is None or name == "duration":
        return ""
    if "samples" in name or name == "ms":
        return f"{round(100 * (b / a - 1)):+d} %" if a else ""  # round: no -0
    return f"{round(100 * (b - a)):+d} points"


def _stages(track: Track) -> dict[str, float]:
    """Worker milliseconds per row that the job took, by stage."""
    whole = joined(track.slices)
    images = whole.sums.get("images", 0.0)
    return {name: 1e3 * spent_s / images for name, spent_s in whole.named("stage ").items()} if images else {}


def _verdict(track: Track) -> str:
    titles = joined(track.slices).named("verdict ")
    known = [title for title in titles if title != "not enough data"] or list(titles)
    return known[0] if known else "not enough data"


def _settings(history: History, track: Track) -> dict[str, Any]:
    run = history.run
    return {
        **reads_of(track),
        **{f"{part}.{name}": value for part in ("settings", "machine", "versions")
           for name, value in run.get(part, {}).items()},
    }  # fmt: skip
