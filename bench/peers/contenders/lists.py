"""Reads the list file of samples without any package."""

from __future__ import annotations

from pathlib import Path


def listed(path: str) -> list[tuple[str, int]]:
    """(file, label) of each line."""
    rows = (line.split("\t") for line in Path(path).read_text().splitlines())
    return [(file, int(label)) for file, label in rows]
