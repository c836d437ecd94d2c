"""A run as one self-contained HTML page: charts as inline SVG, light and dark, and the data for `compare`."""

from __future__ import annotations

import html
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prepserver.cli.table import duration, percent
from prepserver.telemetry.history import History, Slice, Track, figures, gathered, joined

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _FOOT = 940, 170, 58, 12, 22
_COLOURS = 8
_MOST_POINTS, _JUDGED_S = 300, 10.0
"""Most points of a chart, and the shortest points of charts whose figures come every ten seconds."""
_DATA = "prepserver-run"
_EMBEDDED_SLICES = 720
_LOOP = {"loading": "wait", "copying": "copy", "computing": "own"}

Series = tuple[str, int, Callable[[Slice], float | None]]
"""A name, the number of its colour, and its value."""


def page(history: History) -> str:
    """The page of a run."""
    run, tracks = history.run, history.by_images
    title = f"{run.get('job', 'a job')}, {run.get('since', '')}"
    first, others = tracks[0], tracks[1:]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>",
        f"<header><h1>{_text(run.get('job', ''))}</h1><p>{_text(_about(run, first))}</p></header>",
        _track(first),
        *(
            f"<details><summary>The job also read {_text(_name(each))}</summary>{_track(each)}</details>"
            for each in others
        ),
        _configuration(run, first),
        "<footer>Made by <code>prepserver report</code>. Loading: the training loop waits for rows. Copying: it waits "
        "while rows are copied. Computing: everything else between two batches.</footer>",
        f'<script type="application/json" id="{_DATA}">{_embedded(history)}</script></body></html>\n',
    ]  # fmt: skip
    return "\n".join(parts)


def data_of(text: str) -> History:
    """The run that a page shows.

    Raises:
        ValueError: The page is not one of `page`.
    """
    found = re.search(rf'<script type="application/json" id="{_DATA}">(.*?)</script>', text, re.DOTALL)
    if found is None:
        raise ValueError("not a page of `prepserver report`")
    history = History()
    try:
        for line in json.loads(found[1]):
            history.take(line)
        if history.by_images:
            page(history)  # uses all values, so it fails where one has a wrong type
    except Exception as e:
        raise ValueError("this page of `prepserver report` is damaged") from e
    return history


def _embedded(history: History) -> str:
    short = History(history.run, [], {
        name: Track(track.reads, gathered(track.slices, _EMBEDDED_SLICES), track.verdicts)
        for name, track in history.tracks.items()
    })  # fmt: skip
    return json.dumps(list(short.lines()), separators=(",", ":")).replace("<", "\\u003c")


def _about(run: Mapping[str, Any], track: Track) -> str:
    whole, machine = joined(track.slices), run.get("machine", {})
    return (
        f"{_name(track)} · since {run.get('since', '?')} · {duration(whole.span_s)} · {machine.get('host', '?')}, "
        f"{machine.get('cores', 0):g} cores, workers: {run.get('settings', {}).get('workers', '?')}"
    )


def _track(track: Track) -> str:
    found, whole = figures(track.slices), joined(track.slices)
    tiles = "".join(
        f"<div><b>{_text(shown(name, value))}</b><span>{_text(name)}</span></div>"
        for name, value in found.items()
        if value is not None
    )
    stages, titles = list(whole.named("stage ")), list(whole.named("verdict "))
    fine, coarse = gathered(track.slices, _MOST_POINTS), gathered(track.slices, _MOST_POINTS, _JUDGED_S)
    lines: list[Series] = [
        ("workers busy", 0, lambda each: each.share("busy", "workers")),
        ("ring filled", 2, lambda each: each.share("ring", "ranks")),
        ("GPU", 4, lambda each: each.share("gpu", "gpus")),
    ]
    charts = [
        _chart("Samples per second", fine, [("samples/s", 0, lambda each: each.images_per_s)], None),
        _chart("The loop's time", fine, _parts(_LOOP, (4, 3, 2)), 1.0),
        _chart("The workers' time for this job", coarse, _parts({name: f"stage {name}" for name in stages}), 1.0),
        _chart("Use", fine, [each for each in lines if any(each[2](s) is not None for s in fine)], 1.0, stack=False),
        _chart("Verdict", coarse, _parts({title: f"verdict {title}" for title in titles}), 1.0, height=70),
    ]
    return f'<section>{_verdict(track, whole)}<div class="tiles">{tiles}</div>{"".join(charts)}</section>'


def _parts(sums: Mapping[str, str], colours: Sequence[int] = range(_COLOURS)) -> list[Series]:
    """For each sum (name to key in a slice), its fraction of all of them."""

    def share(part: str) -> Callable[[Slice], float | None]:
        return lambda each: each.share(part, *sums.values())

    pairs = zip(sums.items(), itertools.cycle(colours), strict=False)
    return [(name, colour, share(part)) for (name, part), colour in pairs]


def _verdict(track: Track, whole: Slice) -> str:
    held = {title: spent_s for title, spent_s in whole.named("verdict ").items() if title in track.verdicts}
    known = [title for title in held if track.verdicts[title]["kind"] != "not enough data"] or list(held)
    if not known:
        return '<div class="verdict"><h2>No verdict</h2><p>The run was too short to be judged.</p></div>'
    said = track.verdicts[known[0]]
    more = "".join(
        f"<li>{_text(title)}, {percent(held[title] / sum(held.values()))} of the time: "
        f"{_text(track.verdicts[title]['next'] or track.verdicts[title]['why'])}</li>"
        for title in known[1:]
    )
    also = f" Also: {', '.join(said['also'])}." if said["also"] else ""
    following = f"<p><b>Next.</b> {_text(said['next'])}</p>" if said["next"] else ""
    return (
        f'<div class="verdict {"fine" if said["is_fine"] else "bad"}">'
        f"<h2>{_text(known[0])} <small>{percent(held[known[0]] / sum(held.values()))} of the time</small></h2>"
        f"<p><b>Why.</b> {_text(said['why'])}.{_text(also)}</p>{following}"
        f"{f'<p>At other times:</p><ul>{more}</ul>' if more else ''}</div>"
    )


# -- charts ----------------------------------------------------------------------------------------------


def _chart(
    title: str, slices: Sequence[Slice], series: Sequence[Series], top: float | None, *, stack: bool = True,
    height: int = _HEIGHT,
) -> str:  # fmt: skip
    """A chart over time: stacked bars, or lines."""
    if not slices or not series:
        return ""
    start_s = slices[0].at_s
    end_s = max(each.at_s + each.span_s for each in slices)
    values = [[of(each) for _, _, of in series] for each in slices]
    highest = top or _nice(max((value or 0.0 for row in values for value in row), default=0.0))

    def x(at_s: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (at_s - start_s) / max(end_s - start_s, 1e-9)

    def y(value: float) -> float:
        return 6 + (height - 6) * (1 - min(value / highest, 1.0))

    drawn = _bars(slices, values, len(series), x, y) if stack else _lines(slices, values, len(series), x, y)
    shapes = "".join(
        f'<path class="{"bar" if stack else "line"} c{colour % _COLOURS}" d="{path}"/>'
        for (_, colour, _), path in zip(series, drawn, strict=True)
    )
    unit: Callable[[float], str] = percent if top else _short
    grid = "".join(
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{_text(unit(v))}</text>'
        for v in (0.0, highest / 2, highest)
    )
    ticks = "".join(
        f'<text x="{x(start_s + at):.1f}" y="{height + 16}" text-anchor="{anchor}">{duration(at)}</text>'
        for k in range(5)
        for at, anchor in [((end_s - start_s) * k / 4, ("start", "middle", "middle", "middle", "end")[k])]
    )
    hints = "".join(
        f'<rect x="{x(each.at_s):.1f}" width="{max(x(each.at_s + each.span_s) - x(each.at_s), 1):.1f}" y="0" '
        f'height="{height}"><title>{_text(_hint(each.at_s - start_s, series, row, unit))}</title></rect>'
        for each, row in zip(slices, values, strict=True)
    )
    legend = "".join(f'<li><i class="c{colour % _COLOURS}"></i>{_text(name)}</li>' for name, colour, _ in series)
    return (
        f'<figure><figcaption><h3>{_text(title)}</h3><ul>{legend if top else ""}</ul></figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {height + _FOOT}" role="img" aria-label="{_text(title)}">'
        f'<g class="grid">{grid}{ticks}</g>{shapes}<g class="hints">{hints}</g></svg></figure>'
    )  # fmt: skip


Scale = Callable[[float], float]
Values = Sequence[Sequence[float | None]]


def _bars(slices: Sequence[Slice], values: Values, count: int, x: Scale, y: Scale) -> list[str]:
    paths: list[list[str]] = [[] for _ in range(count)]
    for each, after, row in zip(slices, [*slices[1:], None], values, strict=True):
        end_s = each.at_s + each.span_s
        if after is not None and abs(after.at_s - end_s) < each.span_s / 2:
            end_s = after.at_s  # times are rounded: this is no pause
        left, right, base = x(each.at_s), x(end_s), 0.0
        for path, value in zip(paths, row, strict=True):
            if value:
                path.append(f"M{left:.1f} {y(base):.1f}V{y(base + value):.1f}H{right:.1f}V{y(base):.1f}z")
                base += value
    return ["".join(path) for path in paths]


def _lines(slices: Sequence[Slice], values: Values, count: int, x: Scale, y: Scale) -> list[str]:
    paths: list[list[str]] = [[] for _ in range(count)]
    for before, each, row in zip([None, *slices], slices, values, strict=False):
        is_gap = before is None or each.at_s - before.at_s - before.span_s > 2 * (before.span_s + each.span_s)
        for path, value in zip(paths, row, strict=True):
            if value is not None:
                path.append(f"{'M' if is_gap or not path else 'L'}{x(each.at_s + each.span_s / 2):.1f} {y(value):.1f}")
    return ["".join(path) for path in paths]


def _hint(at_s: float, series: Sequence[Series], row: Sequence[float | None], unit: Callable[[float], str]) -> str:
    found = (f"{name}: {unit(value)}" for (name, _, _), value in zip(series, row, strict=True) if value is not None)
    return "\n".join([f"after {duration(at_s)}", *found])


def _nice(value: float) -> float:
    """A round number that is not below `value`."""
    scale = 10.0 ** (len(str(int(value))) - 1) if value >= 1 else 1.0
    return next(step * scale for step in (1, 2, 3, 4, 5, 6, 8, 10, 20) if step * scale >= value)


# -- what was run ----------------------------------------------------------------------------------------


def _configuration(run: Mapping[str, Any], track: Track) -> str:
    tables = [("Job", reads_of(track)), *((name.title(), run.get(name, {})) for name in ("settings", "machine"))]
    tables.append(("Versions", run.get("versions", {})))
    return "<section><h2>Configuration</h2>" + "".join(
        f"<h3>{_text(title)}</h3><table>" + "".join(
            f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows.items()
        ) + "</table>"
        for title, rows in tables
    ) + "</section>"  # fmt: skip


def reads_of(track: Track) -> dict[str, str]:
    """What a job reads, by name, as a script writes it."""
    shown = dict(track.reads)
    shown["pipeline"] = ", ".join(call(each, "op") for each in shown.get("pipeline") or [])
    shown["source"] = call(shown.get("source") or {}, "source")
    return {"samples" if name == "n" else name: str(value) for name, value in shown.items() if name != "index"}


def call(wire: Any, key: str) -> str:
    """An op or a source in its wire form, as a script writes it."""
    if isinstance(wire, Mapping) and key in wire:
        given = ", ".join(f"{name}={call(value, key)}" for name, value in wire.items() if name != key)
        return f"{wire[key]}({given})"
    if isinstance(wire, list):
        return f"[{', '.join(call(each, key) for each in wire)}]"
    return str(wire)


def _name(track: Track) -> str:
    return f"{(track.reads.get('source') or {}).get('source', 'a source')} of {track.reads.get('n', 0):,} samples"


def shown(name: str, value: float) -> str:
    """A figure of `prepserver.telemetry.history.figures` with its unit."""
    return f"{value:,.0f}" if "samples" in name else duration(value) if name == "duration" else percent(value)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _text(value: object) -> str:
    return html.escape(str(value))


_STYLE = """
:root{color-scheme:light dark;--fg:#1d2126;--dim:#67707b;--bg:#fff;--card:#f4f6f8;--rule:#d9dee3;
--good:#22803a;--bad:#b4540a}
@media(prefers-color-scheme:dark){:root{--fg:#e6e9ec;--dim:#98a2ad;--bg:#15181c;--card:#1f242a;--rule:#343b43;
--good:#5fc27a;--bad:#f0a04b}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1020px;padding:24px;font:15px/1.5 system-ui,sans-serif;
color:var(--fg);background:var(--bg)}
h1{margin:0;font-size:26px;overflow-wrap:anywhere}h2{font-size:19px;margin:0 0 6px}h3{font-size:15px;margin:0}
header p,footer,small,figcaption ul,.tiles span{color:var(--dim)}header p{margin:2px 0 20px}
small{font-weight:normal;font-size:14px}
.verdict{border-left:5px solid var(--dim);background:var(--card);padding:14px 18px;border-radius:6px}
.verdict p{margin:6px 0}.fine{border-color:var(--good)}.fine h2{color:var(--good)}
.bad{border-color:var(--bad)}.bad h2{color:var(--bad)}ul{margin:4px 0;padding-left:20px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(104px,1fr));gap:10px;margin:16px 0 22px}
.tiles div{background:var(--card);border-radius:6px;padding:10px}.tiles b{display:block;font-size:18px;
white-space:nowrap;font-variant-numeric:tabular-nums}.tiles span{font-size:13px}
figure{margin:0 0 20px}figcaption{display:flex;flex-wrap:wrap;gap:4px 18px;align-items:baseline}
figcaption ul{list-style:none;display:flex;flex-wrap:wrap;gap:2px 14px;margin:0;padding:0;font-size:13px}
i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
svg{display:block;width:100%;height:auto}.grid line{stroke:var(--rule)}.grid text{fill:var(--dim);font-size:12px}
.bar{shape-rendering:crispEdges}.line{fill:none;stroke-width:2;stroke-linejoin:round}
.hints rect{fill:transparent}.hints rect:hover{fill:var(--fg);fill-opacity:.12}
table{border-collapse:collapse;width:100%;margin:4px 0 18px;font-size:14px}th{width:170px}
th,td{text-align:left;vertical-align:top;padding:4px 8px 4px 0;border-top:1px solid var(--rule);overflow-wrap:anywhere}
th{font-weight:normal;color:var(--dim)}details{margin:0 0 22px}summary{cursor:pointer;margin-bottom:12px}
footer{font-size:13px;margin-top:10px}
""" + "".join(
    f".c{k}{{fill:{colour};background:{colour}}}.line.c{k}{{fill:none;stroke:{colour};background:none}}"
    for k, colour in enumerate(("#4477aa", "#66ccee", "#3a9a52", "#ccbb44", "#ee6677", "#aa3377", "#8a7fd0", "#999999"))
)
