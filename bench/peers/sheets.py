"""Figures of the case `peers` as tables, sentences and a plot."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from bench.harness.bars import Bar, bars
from bench.harness.case import Figures
from bench.harness.rounds import Target, ratios, target_sheet, values
from bench.harness.tables import Sheet, spread
from bench.peers.roster import PEERS


@dataclass(frozen=True, slots=True)
class _Figure:
    """A column in which a contender can be ahead."""

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


def _target(text: str, figure: str, of: tuple[str, str | None], bound: float, sign: str = ">=") -> Target:
    first, second = ({"peer": key} if key else None for key in of)
    return Target(text, figure, first or {}, second, bound, sign)


TARGETS = [
    _target("prepserver / DataLoader, simplejpeg, cv2", "steady_per_s", ("prepserver", "torch_cv2"), 1.25),
    _target("prepserver / DataLoader, Pillow", "steady_per_s", ("prepserver", "torch_pillow"), 1.9),
    _target("prepserver / DALI", "steady_per_s", ("prepserver", "dali"), 1.5),
    _target("prepserver / Grain", "steady_per_s", ("prepserver", "grain"), 1.25),
    _target("prepserver / SPDL", "steady_per_s", ("prepserver", "spdl"), 1.6),
    _target("prepserver / FFCV, JPEG 90", "steady_per_s", ("prepserver", "ffcv_jpg90"), 1.0),
    _target("prepserver / tf.data", "steady_per_s", ("prepserver", "tf_data"), 1.0),
    _target("packed / plain files", "steady_per_s", ("packed", "prepserver"), 1.25),
    _target("packed / FFCV, rn50 500/0.5/90", "steady_per_s", ("packed", "ffcv_mix"), 1.0),
    _target("packed, lent / FFCV, raw pixels", "steady_per_s", ("packed_lent", "ffcv_raw"), 0.85),
    _target("packed / FFCV, raw pixels", "steady_per_s", ("packed", "ffcv_raw"), 0.85),
    _target("bytes: packed / FFCV, raw pixels", "kb_per_image", ("packed", "ffcv_raw"), 1 / 6, "<="),
    _target("packed pixels / FFCV, raw pixels", "steady_per_s", ("pixels", "ffcv_raw"), 1.3),
    _target("bytes: packed pixels / FFCV, raw pixels", "kb_per_image", ("pixels", "ffcv_raw"), 0.5, "<="),
    _target("4 jobs in sum: prepserver, lent / TensorSocket", "steady_per_s", ("lent_4", "tensorsocket_4"), 1.5),
    _target("4 jobs in sum: prepserver / TensorSocket", "steady_per_s", ("prepserver_4", "tensorsocket_4"), 1.5),
    _target("4 jobs in sum: prepserver / tf.data service", "steady_per_s", ("prepserver_4", "tf_service_4"), 1.9),
    _target("4 jobs in sum: prepserver / 4 DataLoaders", "steady_per_s", ("prepserver_4", "torch_cv2_4"), 5.0),
    _target("ms to wait between epochs, beyond the usual wait", "gap_ms", ("prepserver", None), 5.0, "<="),
    _target("s to the first batch", "first_batch_s", ("prepserver", None), 0.5, "<="),
    _target("MiB of daemon and workers, without the ring", "server_own_mib", ("prepserver", None), 300.0, "<="),
]


def sheets(result: Figures) -> list[Sheet]:
    """The comparison, prepserver's memory in parts, the targets."""
    targets = target_sheet("Targets (median over rounds, min-max)", result["rounds"], TARGETS)
    return [_comparison(result), _memory(result), targets]


def _comparison(result: Figures) -> Sheet:
    rounds = result["rounds"]
    sheet = Sheet(
        f"{result['workers']} workers; medians of {len(rounds)} rounds (min-max)",
        ("contender", "jobs", "antialiased", "images/s in sum", "/ prepserver", *(f.text for f in _FIGURES[1:])),
    )
    for key in _keys(result):
        peer, which = PEERS[key], {"peer": key}
        rates = spread(values(rounds, "steady_per_s", which))
        relative = ratios(rounds, "steady_per_s", which, {"peer": _reference(key)})
        rest = [_median(result, key, figure) for figure in _FIGURES[1:]]
        sheet.rows.append((peer.name, str(peer.jobs), peer.antialiased, rates, spread(relative, ".2f"), *rest))
    return sheet


def _median(result: Figures, key: str, figure: _Figure) -> str:
    found = values(result["rounds"], figure.key, {"peer": key})
    return f"{statistics.median(found):{figure.form}}" if found else "-"


def _memory(result: Figures) -> Sheet:
    sheet = Sheet(
        "prepserver's memory in parts, PSS in MiB", ("", "jobs", "daemon, zygote, workers", "ring", "the jobs' own")
    )
    for key in _keys(result):
        which = {"peer": key}
        if own := values(result["rounds"], "server_own_mib", which):
            whole, ring = (values(result["rounds"], figure, which) for figure in ("pss_mib", "pss_shmem_mib"))
            jobs = [a - b - c for a, b, c in zip(whole, ring, own, strict=True)]
            sheet.rows.append((PEERS[key].name, str(PEERS[key].jobs), spread(own), spread(ring), spread(jobs)))
    return sheet


def remarks(result: Figures) -> list[str]:
    """Which contenders are ahead of prepserver in what, which are missing and why, and what was compared."""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return [*ahead(result), *result["left_out"].values(), *([f"Versions: {versions}."] if versions else [])]


def ahead(result: Figures) -> list[str]:
    """For each column, a sentence that names the contenders ahead of prepserver on plain files with as many jobs."""
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


def _if_ahead(result: Figures, figure: _Figure, own: str, key: str) -> str:
    mine, theirs = (values(result["rounds"], figure.key, {"peer": each}) for each in (own, key))
    if not mine or not theirs:
        return ""
    here, there = statistics.median(mine), statistics.median(theirs)
    if there == here or (there > here) != figure.more_is_better:
        return ""
    peer = PEERS[key]
    return f"{peer.name} ({there:{figure.form}} to {here:{figure.form}}; antialiased: {peer.antialiased})"


def chart(result: Figures) -> str:
    """images/s of all contenders as an SVG, with a group for each number of jobs."""
    groups: dict[str, list[Bar]] = {}
    for key in _keys(result):
        peer, found = PEERS[key], values(result["rounds"], "steady_per_s", {"peer": key})
        title = f"{peer.jobs} job{'s' if peer.jobs > 1 else ''}: images/s{' in sum' if peer.jobs > 1 else ''}"
        note = "" if peer.antialiased == "yes" else f"antialiased: {peer.antialiased}"
        groups.setdefault(title, []).append(
            Bar(peer.name, statistics.median(found), min(found), max(found), note, peer.module == "prepserver")
        )
    return bars({title: sorted(group, key=lambda bar: -bar.value) for title, group in groups.items()})


def _reference(key: str) -> str:
    """prepserver on plain files with as many jobs."""
    return "prepserver" if PEERS[key].jobs == 1 else f"prepserver_{PEERS[key].jobs}"


def _keys(result: Figures) -> list[str]:
    found = {cell["peer"] for cells in result["rounds"] for cell in cells}
    return [key for key in PEERS if key in found]
