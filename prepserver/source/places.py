"""Where the files of a dataset really lie: the folders that whoever reads it must be able to open.

Links are followed, because a sandbox judges what is opened and not what it is called. A dataset made of links may
lead to any number of folders: beyond `MOST` of them, or `MOST_BYTES` of their names, common parents stand for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from prepserver.source.roots import real_path

MOST = 128
MOST_BYTES = 8192
"""For all names together: they go to workers in one message, with other things."""

_FOLD_AT = 4096  # so many are remembered while a listing goes on


class Places:
    """The folders, collected while a dataset is listed.

    Args:
        most: How many `found` gives, at least 1.
        most_bytes: How long their names may be together.
    """

    def __init__(self, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._via: dict[bytes, bytes] = {}

    def add_folder(self, path: bytes) -> None:
        """Adds a folder that holds files of the dataset, with all that is below it."""
        self._add(real_path(path), path)

    def add_file(self, path: bytes) -> None:
        """Adds the folder of a file that may be a link."""
        self._add(os.path.dirname(real_path(path)), path)

    def found(self) -> dict[str, bytes]:
        """The folders, none below another, each with one path of the dataset that leads to it or below it.

        Whoever looks where that path leads sees a place that has moved since.
        """
        most = self._most
        kept = _fold(self._via, most)
        while most > 1 and sum(map(len, kept)) > self._most_bytes:
            most //= 2
            kept = _fold(kept, most)
        return {place.decode(): via for place, via in kept.items()}

    def _add(self, real: bytes, via: bytes) -> None:
        while not _is_text(real):  # it travels in messages
            real = os.path.dirname(real)
        if real in self._via or any(above in self._via for above in _above(real)):
            return
        self._via[real] = via
        if len(self._via) > _FOLD_AT:
            self._via = _fold(self._via, self._most)


def still_lead(places: Iterable[tuple[str, bytes]]) -> bool:
    """Whether the paths that `Places.found` gave still lead where they led."""
    return all(f"{os.fsdecode(real_path(via))}/".startswith(f"{place.rstrip('/')}/") for place, via in places)


def _fold(via: dict[bytes, bytes], most: int) -> dict[bytes, bytes]:
    """At most `most` folders that hold all of `via`, as far down as that allows.

    From the top: of the folders that stand for others, the one that splits into the fewest goes first.
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


def _is_text(path: bytes) -> bool:
    try:
        path.decode()
    except UnicodeDecodeError:
        return False
    return True
