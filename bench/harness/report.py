"""Writes RESULTS.md from the figures in bench/out: ``python bench/results.py [--out DIR] > bench/RESULTS.md``.

Run the others before, on a quiet machine; what was not run is left out. Of the peers' figures it draws `peers.svg`
beside RESULTS.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import attach
import compare
import delivery
import entropy
import joining
import lanes
import large
import peer_sheets
import recovery
import resume
import rows
import scaling
import worker_profile
from fingerprint import ROOT, line

_TITLES = {
    "compare.json": ("Against torch's DataLoader", compare.sheets),
    "peers.json": ("Against every loader that one could take instead", peer_sheets.sheets),
    "attach.json": ("Attaching, and what a worker weighs", attach.sheets),
    "delivery.json": ("Delivery of a batch", delivery.sheets),
    "rows.json": ("Rows that are ready", rows.sheets),
    "scaling.json": ("Workers, clients, and the daemon's own limit", scaling.sheets),
    "worker_profile.json": ("Where a worker's time goes", worker_profile.sheets),
    "entropy.json": ("Huffman decoding", entropy.sheets),
    "large.json": ("Photos of 12 megapixels", large.sheets),
    "recovery.json": ("After a kill", recovery.sheets),
    "resume.json": ("Resuming", resume.sheets),
    "lanes.json": ("Lanes: two image sizes on one stream", lanes.sheets),
    "joining.json": ("Joining a running stream", joining.sheets),
}

_PLOT = ROOT / "bench" / "peers.svg"

_QUIET_LOAD = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description="RESULTS.md from measured figures.")
    parser.add_argument("--out", type=Path, default=compare.OUT, help="where the figures are")
    folder: Path = parser.parse_args().out
    print("# Measured\n")
    print("Made by `python bench/results.py > bench/RESULTS.md` after the benchmarks of this folder; how they measure:")
    print("[README.md](README.md). Medians, with min-max over rounds in brackets.")
    for name, (title, sheets) in _TITLES.items():
        path = folder / name
        if not path.exists():
            continue
        result = compare.load(path)
        print(f"\n## {title}\n\n{line(result['machine'])}.")
        if (load := result["machine"]["load_before"]) > _QUIET_LOAD:
            print(f"**The machine was not quiet (load {load:g} before the run): provisional.**")
        if "rounds" in result:
            rounds = f"{len(result['rounds'])} rounds in {result['took_s']:.0f} s"
            print(f"{result['photos']}; {result['workers']} workers; {rounds}.")
            for warning in compare.disturbed(result):
                print(f"**{warning}**")
        for sheet in sheets(result):
            print(f"\n{sheet.markdown()}", end="")
        if name == "peers.json":
            _PLOT.write_text(peer_sheets.chart(result))
            print(f"\n![images/s of all]({_PLOT.name})\n")
            print("\n".join(f"- {text}" for text in peer_sheets.remarks(result)))


if __name__ == "__main__":
    main()
