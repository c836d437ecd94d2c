"""The index of a dataset of files: built in memory by a scan, read entry by entry by workers.

Per file: a row of where its name begins, its label and the number of its folder, 20 bytes, and the name. What else is
known of a file stands in its row, too, so that one read finds it all. Folder names are stored once. A path is
`folder + name`, where the folder ends in a slash or is empty; it is relative to the base of the source unless it
begins with a slash. Paths are bytes, as the system has them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from prepserver.source.container import Container
from prepserver.source.errors import SampleError, printable
from prepserver.source.roots import Roots
from prepserver.source.samples import Record, read_regular_file


class FileTable:
    """The growing index of a scan: flat arrays, so that a million files cost tens of megabytes, not hundreds."""

    def __init__(self) -> None:
        self._labels = array("q")
        self._folders = array("I")
        self._names = bytearray()
        self._name_ends = array("Q", [0])
        self._folder_names = bytearray()
        self._folder_ends = array("Q", [0])
        self._folder_numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._labels)

    def add(self, folder: bytes, name: bytes, label: int) -> None:
        """Append a file.

        Args:
            folder: b"" or a path that ends in a slash.
            name: Without slashes.
            label: 0 or more, below 2**63.
        """
        number = self._folder_numbers.get(folder)
        if number is None:
            number = self._folder_numbers[folder] = len(self._folder_numbers)
            self._folder_names += folder
            self._folder_ends.append(len(self._folder_names))
        self._labels.append(label)
        self._folders.append(number)
        self._names += name
        self._name_ends.append(len(self._names))

    def relabel(self, labels: list[int]) -> None:
        """Replace all labels, when they are known only at the end."""
        self._labels = array("q", labels)

    @property
    def max_label(self) -> int:
        """The largest label."""
        return max(self._labels)

    @property
    def folders(self) -> list[bytes]:
        """The folders as they were given, by their number."""
        return list(self._folder_numbers)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Number of the folder and name of each file."""
        for row, folder in enumerate(self._folders):
            yield folder, bytes(self._names[self._name_ends[row] : self._name_ends[row + 1]])

    def digest(self, classes: list[str]) -> str:
        """Hex SHA-256 over labels, paths and class names, in their order."""
        digest = hashlib.sha256(json.dumps(classes).encode())
        for column in (
            self._labels, self._folders, self._name_ends, self._names, self._folder_ends, self._folder_names,
        ):  # fmt: skip
            data = memoryview(column)
            digest.update(data.nbytes.to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()

    def sections(self, *more: array[int], prefix: str = "") -> dict[str, memoryview]:
        """The sections of the index file, with further numbers of each file; see `FileSource`."""
        columns = (self._name_ends, self._labels, self._folders, *more)
        # Of the last row, one more than there are files, there is only where the last name ends.
        rows = np.zeros(len(self) + 1, ",".join(column.typecode for column in columns))
        for name, column in zip(rows.dtype.names or (), columns, strict=True):
            rows[name][: len(column)] = column
        return {
            f"{prefix}names": memoryview(self._names),
            f"{prefix}folder_ends": memoryview(self._folder_ends),
            f"{prefix}folder_names": memoryview(self._folder_names),
            f"{prefix}files": rows.view(np.uint8).data,
        }


_FOLDERS_KEPT = 4096

MASKS = "mask_"
"""Begins the names of the sections that list masks."""


def table_meta(table: FileTable, classes: list[str], masks: FileTable | None) -> dict[str, Any]:
    """What an index says of the files that it lists."""
    content = table.digest(classes)
    if masks is not None:
        content = hashlib.sha256(f"{content} {masks.digest([])}".encode()).hexdigest()
    return {
        "n": len(table),
        "classes": classes,
        "num_classes": len(classes) or table.max_label + 1,
        "content_digest": content,
    }


def check_folders(sections: Callable[[str], memoryview], base: str, roots: Roots, prefix: str = "") -> None:
    """Check that every folder that holds files of an index lies in the roots.

    Args:
        sections: Gives a section of the index by name.
        base: What relative paths are relative to, absolute.
        roots: Where folders must lie.
        prefix: Of the names of the sections.

    Raises:
        OutsideRootsError: One does not.
    """
    names, ends = sections(f"{prefix}folder_names").cast("B"), sections(f"{prefix}folder_ends").cast("B").cast("Q")
    for start, end in itertools.pairwise(ends):
        folder = bytes(names[start:end])
        roots.check_path("the folder", folder if folder.startswith(b"/") else os.fsencode(base) + b"/" + folder)


class FileSource:
    """A `Source` over an index file."""

    def __init__(
        self, container: Container, base: str, roots: Roots | None = None, more: str = "", prefix: str = ""
    ) -> None:
        """Look where the sections are; O(1) but for the names of the classes.

        Args:
            container: An index that was built from a `FileTable`.
            base: What relative paths are relative to, absolute.
            roots: Where files must lie.
            more: Further numbers of each file, as in the module `struct`.
            prefix: Of the names of the sections.
        """
        self._roots = roots
        self._names = f"{prefix}names"
        self._folders = f"{prefix}folder_names"
        self._base = os.fsencode(base.rstrip("/") + "/")
        self._classes: list[str] = container.meta["classes"]
        self._container = container
        self._rows = container.rows(f"{prefix}files", f"QqI{more}Q", struct.calcsize(f"=QqI{more}"))
        self._folder_ends = container.rows(f"{prefix}folder_ends", "QQ", 8)
        self._folder_names: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> Record:
        """As `Source.read`."""
        row = self._rows[index]
        path = self._path(row)
        full = path if path.startswith(b"/") else self._base + path
        return {"image": read_regular_file(full, roots=self._roots), "label": row[1]}

    def label(self, index: int) -> int:
        """As `Source.label`."""
        return self.more(index)[0]

    def more(self, index: int) -> tuple[int, ...]:
        """The label, the number of the folder, and the further numbers."""
        return self._rows[index][1:-1]

    def name(self, index: int) -> str:
        """As `Source.name`."""
        return os.fsdecode(self._path(self._rows[index]))

    def classes(self) -> list[str]:
        """As `Source.classes`."""
        return list(self._classes)

    def _path(self, row: tuple[int, ...]) -> bytes:
        return self._folder(row[2]) + self._container.piece(self._names, row[0], row[-1])

    def _folder(self, number: int) -> bytes:
        name = self._folder_names.get(number)
        if name is None:
            if len(self._folder_names) >= _FOLDERS_KEPT:
                self._folder_names.clear()
            name = self._folder_names[number] = self._container.piece(self._folders, *self._folder_ends[number])
        return name


class MaskedSource:
    """A `Source` of images and of their masks, which are files of their own.

    Args:
        images: The images.
        masks: The masks, in the same order.
    """

    def __init__(self, images: FileSource, masks: FileSource) -> None:
        self._images, self._masks = images, masks

    def __len__(self) -> int:
        return len(self._images)

    def read(self, index: int) -> Record:
        """As `Source.read`."""
        record = self._images.read(index)
        try:
            mask = self._masks.read(index)["image"]
        except SampleError as error:
            raise SampleError(f"its mask {printable(self._masks.name(index))}: {error.reason}") from error
        return {"image": record["image"], "mask": mask, "label": record["label"]}

    def label(self, index: int) -> int:
        """As `Source.label`."""
        return self._images.label(index)

    def name(self, index: int) -> str:
        """As `Source.name`: of the image."""
        return self._images.name(index)

    def classes(self) -> list[str]:
        """As `Source.classes`."""
        return self._images.classes()


def file_source(container: Container, base: str, roots: Roots | None, masks: str | None) -> FileSource | MaskedSource:
    """Open a source of files.

    Args:
        container: Its index.
        base: What relative paths are relative to, absolute.
        roots: Where files must lie.
        masks: What relative paths of masks are relative to; None where there are none.
    """
    images = FileSource(container, base, roots)
    return images if masks is None else MaskedSource(images, FileSource(container, masks, roots, prefix=MASKS))
