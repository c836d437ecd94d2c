"""Outlines of objects in COCO's forms: checked when listed, stored as run lengths, painted into a mask when read.

pycocotools makes and paints the run lengths, so masks have the pixels that its users know.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.source.container import Container
from prepserver.source.errors import library

_COUNTS = re.compile("(?:[P-o]{0,6}+[0-O])++")
"""Compressed run lengths: if the last number has no end, pycocotools reads past the text, and writes what it finds."""
_MOST = 255  # most objects that a mask of uint8 can number


class BadOutline(Exception):
    """An outline cannot be used; the text says why."""


def pycocotools() -> Any:
    """Return pycocotools' functions; raise `SourceError` where it is not installed."""
    return library("pycocotools.mask", "masks need pycocotools", "coco")


def compact(given: Any) -> Any:
    """Return polygons in a form that takes an eighth of the memory; anything else unchanged."""
    try:
        return [array("d", each) for each in given] if isinstance(given, list) else given
    except (TypeError, OverflowError):
        return given  # `run_lengths` says what is wrong


def run_lengths(given: Any, height: int, width: int) -> bytes:
    """Return the compressed run lengths of an outline on an image; empty for one without pixels.

    `given` is a list of polygons, each x and y in turn, after `compact`; or a map with ``size`` and ``counts``. The
    image has `height` times `width` pixels.

    Raises:
        BadOutline: It is neither, or lies far outside the image.
    """
    mask = pycocotools()
    if not given:
        return b""
    if isinstance(given, list):
        return bytes(mask.merge(mask.frPyObjects(_polygons(given, 2 * max(height, width)), height, width))["counts"])
    if not isinstance(given, dict) or given.get("size") != [height, width]:
        raise BadOutline(f"is neither a list of polygons nor run lengths on {height}x{width} pixels")
    counts = given.get("counts")
    if isinstance(counts, list):
        if not all(type(each) is int and each >= 0 for each in counts) or sum(counts) != height * width:
            raise BadOutline(f"has run lengths that do not make {height}x{width} pixels")
        given = mask.frPyObjects(given, height, width)
    elif isinstance(counts, str) and _COUNTS.fullmatch(counts):
        given = {**given, "counts": counts.encode()}
        # Decoding fails on too many pixels only; with too few, the rest of the mask would be uninitialised memory.
        try:
            fits = mask.encode(mask.decode(given))["counts"] == given["counts"]
        except ValueError:
            fits = False
        if not fits:
            raise BadOutline(f"has run lengths that do not make {height}x{width} pixels")
    else:
        raise BadOutline("has run lengths that are neither a list nor COCO's text for one")
    return bytes(given["counts"])


def _polygons(given: list[Any], far: float) -> list[Any]:
    for each in given:
        if not isinstance(each, array) or len(each) < 6 or len(each) % 2:
            raise BadOutline("has a polygon that is not a list of three or more points")
        if not all(-far <= value <= far for value in each):
            raise BadOutline(f"has a polygon with a point farther than {far:g} pixels away")
    return [list(each) for each in given]


def sections(outlines: Sequence[bytes]) -> dict[str, memoryview]:
    """Return the sections of an index that hold the outlines of all objects."""
    ends = np.cumsum([0, *map(len, outlines)], dtype=np.uint64)
    return {"outlines": memoryview(b"".join(outlines)), "outline_ends": ends.view(np.uint8).data}


class Outlines:
    """The outlines in an index; raises `SourceError` if pycocotools is not installed."""

    def __init__(self, container: Container) -> None:
        self._library = pycocotools()
        self._container, self._ends = container, container.rows("outline_ends", "QQ", 8)

    def painted(self, first: int, count: int, size: tuple[int, int]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the mask of an image of `size` (height, width), and the number in the mask of each object.

        The image has `count` objects, from object `first` of the index on.
        """
        canvas, numbers = np.zeros(size, np.uint8), np.zeros(count, np.int16)
        found = [self._container.piece("outlines", *self._ends[first + number]) for number in range(min(count, _MOST))]
        given = {number: {"size": size, "counts": counts} for number, counts in enumerate(found) if counts}
        for number in sorted(given, key=lambda number: -int(self._library.area(given[number]))):
            canvas[self._library.decode(given[number]).astype(bool)] = number + 1
        shown = np.unique(canvas[canvas > 0]).astype(np.int16)
        numbers[shown - 1] = shown
        return canvas, numbers
