"""What `peers.py` found, as tables, sentences and a plot. Pure functions of the result."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bars import Bar, bars
from roster import PEERS, TARGETS, Target
from tables import Sheet, spread

_NOISE_CORES = 0.1


@dataclass(frozen=True, slots=True)
class _Figure:
    """A column in which somebody can be ahead."""

    key: str
    text: str
    form: str
    more_is_better: bool = False


_FIGURES = [
    _Figure("steady_per_s", "images/s", ".0f", more_is_better=True),
    _Figure("cpu_s_per_1000", "CPU s per 1000", ".2f"),
    _Figure("pss_mib", "PSS, MiB", ".0f"),
    _Figure("import_s", "imports, s", ".1f"),
    _Figure("first_batch_s", "first batch, s", ".2f"),
    _Figure("gap_ms", "gap, ms", ".1f"),
    _Figure("next_p50_ms", "next() p50, ms", ".1f"),
    _Figure("next_p99_ms", "next() p99, ms", ".1f"),
    _Figure("kb_per_image", "kB per image", ".0f"),
]


def sheets(result: dict[str, Any]) -> list[Sheet]:
    """The comparison, prepserver's memory in parts, the targets."""
    return [_comparison(result), _memory(result), _targets(result)]


def _comparison(result: dict[str, Any]) -> Sheet:
    sheet = Sheet(
        f"{result['workers']} workers; medians of {len(result['rounds'])} rounds (min-max)",
        ("contender", "jobs", "antialiased", "images/s in sum", "of prepserver's", *(f.text for f in _FIGURES[1:])),
    )
    for key in _keys(result):
        peer = PEERS[key]
        reference = _reference(key)
        rates = spread(values(result, key, "steady_per_s"))
        ratios = quotients(result, "steady_per_s", key, reference)
        rest = [_middle(values(result, key, f.key), f.form) for f in _FIGURES[1:]]
        sheet.rows.append((peer.name, str(peer.jobs), peer.antialiased, rates, spread(ratios, ".2f"), *rest))
    return sheet


def _memory(result: dict[str, Any]) -> Sheet:
    sheet = Sheet(
        "prepserver's memory in parts, PSS in MiB", ("", "jobs", "daemon, zygote, workers", "ring", "the jobs' own")
    )
    for key in _keys(result):
        cells = [cell for cell in _cells(result, key) if "server_own_mib" in cell]
        if cells:
            own = [cell["server_own_mib"] for cell in cells]
            ring = [cell["pss_shmem_mib"] for cell in cells]
            jobs = [c["pss_mib"] - c["pss_shmem_mib"] - c["server_own_mib"] for c in cells]
            sheet.rows.append((PEERS[key].name, str(PEERS[key].jobs), spread(own), spread(ring), spread(jobs)))
    return sheet


def _targets(result: dict[str, Any]) -> Sheet:
    sheet = Sheet("Targets (median of the rounds' own, min-max)", ("figure", "found", "to reach", "reached"))
    for target in TARGETS:
        found = found_for(result, target)
        if not found:
            continue
        middle = statistics.median(found)
        reached = "yes" if (middle >= target.bound if target.above else middle <= target.bound) else "no"
        if _is_disturbed(result, target):
            reached = "undecided: disturbed"
        bound = f"{'>=' if target.above else '<='} {target.bound:.3g}"
        sheet.rows.append((target.text, spread(found, ".0f" if middle >= 100 else ".2f"), bound, reached))
    return sheet


def found_for(result: dict[str, Any], target: Target) -> list[float]:
    """What was found for a target, one value for each round that has it."""
    first, second = target.of
    return values(result, first, target.figure) if second is None else quotients(result, target.figure, first, second)


def remarks(result: dict[str, Any]) -> list[str]:
    """Who is ahead of prepserver in what, who is missing and why, and what was compared."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return [*ahead(result), *result["left_out"].values(), *([f"Versions: {versions}."] if versions else [])]


def ahead(result: dict[str, Any]) -> list[str]:
    """For each column, a sentence that names who is ahead of prepserver on plain files with as many jobs."""
    sentences = []
    for jobs in sorted({PEERS[key].jobs for key in _keys(result)}):
        keys = [key for key in _keys(result) if PEERS[key].jobs == jobs]
        peers = [key for key in keys if PEERS[key].module != "prepserver"]
        own = next((key for key in keys if key == _reference(key)), None)
        if own is None or not peers:
            continue
        for figure in _FIGURES:
            better = [text for key in peers if (text := _if_ahead(result, figure, own, key))]
            who = ", ".join(better) or "nobody"
            sentences.append(f"Ahead of prepserver with {jobs} job(s) in {figure.text}: {who}.")
    return sentences


def _if_ahead(result: dict[str, Any], figure: _Figure, own: str, key: str) -> str:
    mine, theirs = values(result, own, figure.key), values(result, key, figure.key)
    if not mine or not theirs:
        return ""
    here, there = statistics.median(mine), statistics.median(theirs)
    if there == here or (there > here) != figure.more_is_better:
        return ""
    peer = PEERS[key]
    return f"{peer.name} ({there:{figure.form}} to {here:{figure.form}}; antialiased: {peer.antialiased})"


def chart(result: dict[str, Any]) -> str:
    """images/s of all as an SVG: one group for each number of jobs."""
    groups: dict[str, list[Bar]] = {}
    for key in _keys(result):
        peer, found = PEERS[key], values(result, key, "steady_per_s")
        title = f"{peer.jobs} job{'s' if peer.jobs > 1 else ''}: images/s{' in sum' if peer.jobs > 1 else ''}"
        note = "" if peer.antialiased == "yes" else f"antialiased: {peer.antialiased}"
        groups.setdefault(title, []).append(
            Bar(peer.name, statistics.median(found), min(found), max(found), note, peer.module == "prepserver")
        )
    return bars({title: sorted(group, key=lambda bar: -bar.value) for title, group in groups.items()})


def values(result: dict[str, Any], key: str, figure: str) -> list[float]:
    """A figure of a contender, one for each round that has it."""
    return [cell[figure] for cell in _cells(result, key) if cell.get(figure) is not None]


def quotients(result: dict[str, Any], figure: str, first: str, second: str) -> list[float]:
    """first / second, within each round that has both."""
    found = []
    for cells in result["rounds"]:
        at = {cell["peer"]: cell.get(figure) for cell in cells}
        if at.get(first) is not None and at.get(second):
            found.append(at[first] / at[second])
    return found


def _reference(key: str) -> str:
    """prepserver on plain files with as many jobs."""
    return "prepserver" if PEERS[key].jobs == 1 else f"prepserver_{PEERS[key].jobs}"


def _keys(result: dict[str, Any]) -> list[str]:
    found = {cell["peer"] for cells in result["rounds"] for cell in cells}
    return [key for key in PEERS if key in found]


def _cells(result: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [cell for cells in result["rounds"] for cell in cells if cell["peer"] == key]


def _middle(found: Sequence[float], form: str) -> str:
    return f"{statistics.median(found):{form}}" if found else "-"


def _is_disturbed(result: dict[str, Any], target: Target) -> bool:
    """Whether somebody else was at work while its figures were taken: then it proves nothing, either way."""
    if target.figure in ("kb_per_image", "server_own_mib"):
        return False
    cells = [cell for key in target.of if key is not None for cell in _cells(result, key)]
    return any(cell["others_cores"] > _NOISE_CORES for cell in cells)
