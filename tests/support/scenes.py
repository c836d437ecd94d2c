"""Samples with everything that lies on an image's plane, in memory, and their rows without any process."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from PIL import Image as Picture

from prepserver.memory.ring import ArrayRows
from prepserver.order import make_order
from prepserver.pipeline.kinds import Boxes, Image, Keypoints, Kind, Label, Mask, PerBox, Tokens
from prepserver.pipeline.pipeline import Pipeline
from prepserver.source import Record, SampleError, Source
from prepserver.worker.fill import BadRow, fill
from prepserver.worker.streams import Lane, Stream
from tests.support.tiny_images import nothing

COLUMNS: dict[str, Kind] = {
    "image": Image(), "classes": Mask(), "boxes": Boxes(), "labels": PerBox(), "joints": Keypoints(each=2),
    "points": Keypoints(), "tokens": Tokens(), "label": Label(),
}  # fmt: skip
SEED = 3


class Scenes(Source):
    """Samples whose columns are those of `COLUMNS`.

    Args:
        records: The samples.
        bad: Indices of those that cannot be read.
    """

    def __init__(self, records: Sequence[Record], bad: Collection[int] = ()) -> None:
        self._records, self._bad = records, bad
        self.ahead: list[int] = []

    def __len__(self) -> int:
        return len(self._records)

    @property
    def reads_ahead(self) -> bool:
        return True

    def prefetch(self, indices: Sequence[int]) -> None:
        self.ahead += indices

    def read(self, index: int) -> Record:
        if index in self._bad:
            raise SampleError("the file is empty")
        return self._records[index]

    def label(self, index: int) -> int:
        return int(self._records[index]["label"])

    def name(self, index: int) -> str:
        return f"{index}.jpg"

    def classes(self) -> list[str]:
        return []

    def stream(self, quarantined: Collection[int] = ()) -> Stream:
        """All samples in order."""
        return Stream(self, make_order("none", len(self), 0), SEED, frozenset(quarantined))


def scene(number: int, height: int, width: int, kind: str = "PNG") -> Record:
    """A sample of one colour with a box around it, its number on its mask, and noise in its middle."""
    rng = np.random.default_rng(number)
    image = np.full((height, width, 3), 20 + 10 * number, np.uint8)
    middle = slice(height // 3, height // 2), slice(width // 3, width // 2)
    image[middle] = rng.integers(0, 256, image[middle].shape)
    joints = np.array([[[width / 4, height / 4, 2], [width / 2, height / 2, 1]]] * 2, np.float32)
    boxes = np.array([[0, 0, width, height], [1, 2, width / 2, height / 2]], np.float32)
    return {
        "image": encoded(image, kind), "classes": encoded(np.full((height, width), 1 + number, np.uint8)),
        "boxes": (boxes, (height, width)), "labels": np.array([number, 100 + number]), "joints": joints,
        "points": joints[0], "tokens": np.arange(number), "label": number,
    }  # fmt: skip


def encoded(pixels: Any, kind: str = "PNG") -> bytes:
    """A file."""
    file = io.BytesIO()
    Picture.fromarray(pixels).save(file, kind)
    return file.getvalue()


class Arrays(ArrayRows):
    """Rows in memory of our own."""

    def __init__(self, pipeline: Pipeline, count: int) -> None:
        self.fields = {f.name: np.full((count, *f.shape), 77, f.dtype) for f in pipeline.fields}
        super().__init__(self.fields, count)


def rows_of(stream: Stream, pipeline: Pipeline, *cuts: int, start: int = 0) -> tuple[dict[str, Any], list[BadRow]]:
    """The rows of as many positions as all cuts together, by field, filled in one task for each."""
    arrays, bad, at = Arrays(pipeline, sum(cuts)), [], start
    for count in cuts:
        bad += fill(stream, [Lane.of(pipeline, arrays)], at, count, nothing).bad
        at += count
    return arrays.fields, bad


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether rows have the same bytes."""
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)
