"""Images with boxes: the boxes of each file, in flat sections of an index.

The further numbers of each file are its first box (uint64), the number of its boxes (uint32), the (height, width) of
the image that they lie on (both uint32, 0 if unknown) and the dataset's own number (int64). The section ``objects`` has
a row for each box, with those columns of the source that have a value for each box.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from prepserver.pipeline.kinds import Boxes
from prepserver.pipeline.record import Columns
from prepserver.pipeline.source import SourceSpec
from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError
from prepserver.source.files import FileSource, FileTable
from prepserver.source.roots import Roots
from prepserver.source.samples import Record

MOST_COORDINATE = 1e6
"""Of a box or a point: far beyond any image, and still exact to a sixteenth of a pixel in float32."""

MOST_FAULTS = 1000
"""Images with broken annotations. With more, the dataset is broken."""

MOST_FAULT_CHARS = 500  # of the reason for one: it quotes the file, and each worker keeps all reasons in memory

_MORE = "QIIIq"


class ObjectTable:
    """The growing list of boxes, file by file, of a source with these columns."""

    def __init__(self, columns: Columns) -> None:
        self.form = object_form(columns)
        self._numbers = tuple(array(code) for code in _MORE)
        self._rows = bytearray()
        self._faults: dict[str, str] = {}

    def add(
        self, rows: Sequence[tuple[Any, ...]], size: tuple[int, int], number: int = 0, *, sized: bool = False
    ) -> None:
        """Append the boxes of the next file: a row of `form` for each; if `sized`, boxes are left, top, width, height.

        The size is (height, width) of the image in pixels, 0 if unknown; the number is the dataset's own.
        """
        made = np.array(list(rows), self.form)
        if sized:
            boxes = made["boxes"]
            boxes[:, 2:] += boxes[:, :2]  # in float32, as torchvision does
        for column, value in zip(
            self._numbers, (len(self._rows) // self.form.itemsize, len(made), *size, number), strict=True
        ):
            column.append(value)
        self._rows += made.tobytes()

    def add_fault(self, reason: str, place: str, number: int = 0) -> None:
        """Append a file with broken annotations; raises `SourceError`, naming the `place`, if there are too many."""
        if len(self._faults) >= MOST_FAULTS:
            first, why = next(iter(self._faults.items()))
            raise SourceError(
                f"{place}: more than {MOST_FAULTS} images have annotations that cannot be used. The first one is image "
                f"{first} in order: {why}"
            )
        self._faults[str(len(self._numbers[0]))] = reason[:MOST_FAULT_CHARS]
        self.add((), (0, 0), number)

    def contents(
        self, files: FileTable, classes: list[str], masks: FileTable | None = None
    ) -> tuple[dict[str, Any], dict[str, memoryview]]:
        """Return metadata and sections of an index of `files` and masks; raises `SourceError` if all boxes are bad."""
        if len(self._faults) == len(files):
            raise SourceError(f"the annotations of all images are unusable. The first one: {self._faults['0']}")
        meta, sections = files.contents(classes, masks, self._numbers)
        digest = hashlib.sha256(f"{meta['content_digest']} {self.form} {self._faults}".encode())
        for column in self._numbers:
            digest.update(memoryview(column))
        digest.update(self._rows)
        meta |= {"content_digest": digest.hexdigest(), "faults": self._faults}
        return meta, sections | {"objects": memoryview(self._rows)}


def object_form(columns: Columns) -> np.dtype[Any]:
    """Return the dtype of a box's row: the columns that have a value for each box, by name."""
    form = []
    for name, kind in columns.items():
        if isinstance(kind, Boxes) or kind.is_per_box:
            shape, dtype = replace(kind, count=1).stored()  # type: ignore[call-arg]  # all but counts have one
            form.append((name, dtype, shape[1:]))
    return np.dtype(form)


class BoxSource(FileSource):
    """A `Source` of images with boxes; a column ``image_id`` is the dataset's own number, ``orig_size`` the size."""

    def __init__(self, container: Container, spec: SourceSpec, roots: Roots) -> None:
        super().__init__(container, spec, roots, more=_MORE)
        self._form, self._has_id = object_form(spec.columns), "image_id" in spec.columns
        self._has_size = "orig_size" in spec.columns
        self._per_box = self._form.names or ()
        self._faults: dict[str, str] = container.meta["faults"]

    def read(self, index: int) -> Record:
        if self._faults and (fault := self._faults.get(str(index))) is not None:
            raise SampleError(fault)
        row = self._rows[index]
        first, count, height, width, number = row[3:8]
        step = self._form.itemsize
        data = self._container.piece("objects", first * step, (first + count) * step)
        boxes = np.ndarray(count, self._form, data)
        record = self.record(index, row)
        for name in self._per_box:
            record[name] = boxes[name]
        if height and width:
            record["boxes"] = record["boxes"], (height, width)
        if self._has_id:
            record["image_id"] = number
        if self._has_size:
            record["orig_size"] = np.array((height, width), np.int32)
        return record
