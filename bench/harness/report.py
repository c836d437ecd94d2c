"""Writes RESULTS.md from the figures of earlier runs, a section for each case that has been measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from bench.harness.case import Case, Figures
from bench.harness.fingerprint import line
from bench.harness.rounds import NOISE_CORES, disturbed

_HEAD = """# Measured

Written by `python -m bench results` from the figures of the cases; `python -m bench CASE --help` says how each
measures. The figures are medians, with min-max over rounds in brackets.
"""


def write(cases: Mapping[str, Case], figures: Path, folder: Path) -> None:
    """Writes RESULTS.md and the cases' plots into `folder`.

    Args:
        cases: All, by name.
        figures: Holds ``NAME.json`` of each that has been measured. Sections of the others stay as they are.
        folder: Where to write.
    """
    into = folder / "RESULTS.md"
    before = into.read_text().split("\n## ")[1:] if into.exists() else []
    kept = {text.partition("\n")[0]: f"## {text.rstrip()}\n" for text in before}
    parts = [_HEAD]
    for name, case in cases.items():
        found = figures / f"{name}.json"
        if case.title and found.exists():
            parts += _section(name, case, json.loads(found.read_text()), folder)
        elif case.title in kept:
            parts.append(kept[case.title])
    into.write_text("\n".join(parts))


def _section(name: str, case: Case, found: Figures, folder: Path) -> list[str]:
    parts = ["\n".join([f"## {case.title}", "", *heading(found)])]
    parts[0] += "".join(f"\n**{text}**" for text in warnings(found)) + "\n"
    parts += [sheet.markdown() for sheet in case.sheets(found)]
    if case.plot:
        (folder / f"{name}.svg").write_text(case.plot(found))
        parts.append(f"![{case.title}]({name}.svg)\n")
    if remarks := case.remarks(found):
        parts.append("".join(f"- {text}\n" for text in remarks))
    return parts


def heading(found: Figures) -> list[str]:
    """The lines above a case's tables: the machine, the versions, the photos, the workers, the rounds."""
    if "machine" not in found:
        return ["Cut short: these are the figures until then."]
    facts = [found["photos"]] if "photos" in found else []
    facts += [f"{found['workers']} workers"] if "workers" in found else []
    facts += [f"{len(found['rounds'])} rounds in {found['took_s']:.0f} s"] if "rounds" in found else []
    return [f"{line(found['machine'])}.", *([f"{'; '.join(facts)}."] if facts else [])]


def warnings(found: Figures) -> list[str]:
    """Sentences that say why the figures are provisional."""
    cores = found.get("machine", {}).get("busy_before_cores", 0.0)
    busy = [f"{cores:g} cores were busy before the run: provisional."] if cores > NOISE_CORES else []
    return [*busy, *disturbed(found.get("rounds", []))]
