"""The folders where a dataset's files really lie, which its readers must be able to open.

Links are followed, because a sandbox judges what is opened, not its name. A dataset made of links may lead to any
number of folders. Beyond `MOST` of them, or `MOST_BYTES` of their names, their common parents take their place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from prepserver.pipeline.urls import is_url
from prepserver.source.roots import real_path

MOST = 128
MOST_BYTES = 8192  # of all names together: they go to workers in one message

_FOLD_AT = 4096  # most folders that are remembered while a dataset is listed


class Places:
    """Collects the folders while a dataset is listed; URLs are left out.

    `found` returns at most `most` folders, whose names have at most `most_bytes` together.
    """

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._via: dict[bytes, bytes] = {}

    def add_folder(self, path: str | bytes) -> None:
        """Add a folder that holds files of the dataset, with all that is below it."""
        if not is_url(path):
            self._add(real_path(path), os.fsencode(path))

    def add_file(self, path: str | bytes) -> None:
        """Add the folder of a file that may be a link."""
        if not is_url(path):
            self._add(os.path.dirname(real_path(path)), os.fsencode(path))

    def found(self) -> dict[str, str]:
        """Return the folders, none inside another, each with a path of the dataset that leads into it.

        If the path leads elsewhere later, the dataset has moved.
        """
        most = self._most
        kept = _fold(self._via, most)
        while most > 1 and sum(map(len, kept)) > self._most_bytes:
            most //= 2
            kept = _fold(kept, most)
        return {place.decode(): os.fsdecode(via) for place, via in kept.items()}

    def _add(self, real: bytes, via: bytes) -> None:
        while real.decode(errors="ignore").encode() != real:  # messages hold UTF-8 only
            real = os.path.dirname(real)
        if real in self._via or any(above in self._via for above in _above(real)):
            return
        self._via[real] = via
        if len(self._via) > _FOLD_AT:
            self._via = _fold(self._via, self._most)


def still_lead(places: Mapping[str, str]) -> bool:
    """Say whether the paths that `Places.found` returned still lead to the same places."""
    return all(f"{os.fsdecode(real_path(via))}/".startswith(f"{place.rstrip('/')}/") for place, via in places.items())


def _fold(via: dict[bytes, bytes], most: int) -> dict[bytes, bytes]:
    """Return at most `most` folders that hold all of `via`, as deep as that allows.

    It starts at the root, and splits the folder first that has the fewest folders below it.
    """
    below: dict[bytes, set[bytes]] = {}
    for place in via:
        for child, parent in zip((place, *_above(place)), _above(place), strict=False):
            below.setdefault(parent, set()).add(child)
    kept = {b"/"}
    while True:
        split = min(
            (p for p in kept if p not in via and p in below), key=lambda place: (len(below[place]), place), default=None
        )
        if split is None or len(kept) - 1 + len(below[split]) > most:
            break
        kept = kept - {split} | below[split]
    first: dict[bytes, bytes] = {}
    for place, path in via.items():
        holder = next(p for p in (place, *_above(place)) if p in kept)
        first.setdefault(holder, path)
    return first


def _above(place: bytes) -> Iterator[bytes]:
    while place != b"/":
        place = os.path.dirname(place)
        yield place
