"""The index of a dataset of files: built in memory by a scan, read entry by entry by workers.

Each file has a name and a row of 20 bytes: where the name begins, its label and the number of its folder. A row may
hold further numbers, so that one read finds everything about a file. Folder names are stored once. A path is
`folder + name`; the folder ends in a slash or is empty. A path is relative to the base of the source unless it begins
with a slash or is a URL. Paths are bytes, as in system calls.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.urls import is_url
from prepserver.source.container import Container, NumberRows
from prepserver.source.errors import SampleError, printable
from prepserver.source.local import LocalFiles
from prepserver.source.places import Places
from prepserver.source.reader import ScanningReader
from prepserver.source.roots import Roots
from prepserver.source.samples import Record, Source, file_stamp, remote_bytes
from prepserver.source.storage import remote

MASKS = "mask_"  # begins the names of the sections that list masks

_FOLDERS_KEPT = 4096


class FileTable:
    """The growing index of a scan, in flat arrays: a million files take tens of megabytes, not hundreds.

    The base is the absolute path at which relative paths begin.
    """

    def __init__(self, base: str = "") -> None:
        self.base = base
        self._labels = array("q")
        self._folders = array("I")
        self._names = bytearray()
        self._name_ends = array("Q", [0])
        self._folder_names = bytearray()
        self._folder_ends = array("Q", [0])
        self._folder_numbers: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._labels)

    def add(self, path: bytes, label: int) -> None:
        """Append a file; labels are 0 to 2**63 - 1."""
        above, slash, name = path.rpartition(b"/")
        folder = above + slash
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
        """Replace all labels: some lists define them only at their end."""
        self._labels = array("q", labels)

    @property
    def folders(self) -> list[bytes]:
        """Folders as they were given, by number."""
        return list(self._folder_numbers)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number of the folder and the name of each file."""
        for row, folder in enumerate(self._folders):
            yield folder, bytes(self._names[self._name_ends[row] : self._name_ends[row + 1]])

    def digest(self, classes: list[str]) -> str:
        """Return the hex SHA-256 of labels, paths and class names, in their order."""
        digest = hashlib.sha256(json.dumps(classes).encode())
        for column in (
            self._labels, self._folders, self._name_ends, self._names, self._folder_ends, self._folder_names,
        ):  # fmt: skip
            data = memoryview(column)
            digest.update(data.nbytes.to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()

    def add_to(self, places: Places) -> Places:
        """Add the places where the files really lie to `places`, and return it.

        Folders are listed to find the links among their files: on a network file system that is a hundred times faster
        than a call for each file.
        """
        folders = [joined(_folder_of(self.base), folder) for folder in self.folders]
        links: list[frozenset[bytes] | None] = []
        for folder in folders:
            places.add_folder(folder)
            links.append(_links_in(folder))
        if any(found is None or found for found in links):
            for number, name in self:
                here = links[number]
                if name in here if here is not None else os.path.islink(folders[number] + name):
                    places.add_file(folders[number] + name)
        return places

    def sections(self, more: Sequence[array[int]] = (), prefix: str = "") -> dict[str, memoryview]:
        """Return the sections of the index file, with further numbers of each file; see `FileTableSource`."""
        columns = (self._name_ends, self._labels, self._folders, *more)
        # The last row belongs to no file: it says where the last name ends.
        rows = np.zeros(len(self) + 1, ",".join(column.typecode for column in columns))
        for name, column in zip(rows.dtype.names or (), columns, strict=True):
            rows[name][: len(column)] = column
        return {
            f"{prefix}names": memoryview(self._names),
            f"{prefix}folder_ends": memoryview(self._folder_ends),
            f"{prefix}folder_names": memoryview(self._folder_names),
            f"{prefix}files": rows.view(np.uint8).data,
        }

    def contents(
        self, classes: list[str], masks: FileTable | None = None, more: Sequence[array[int]] = ()
    ) -> tuple[dict[str, Any], dict[str, memoryview]]:
        """Return metadata and sections of an index of these files, each with its mask and its `more` numbers.

        `classes` are the names by label; none if labels are only numbers.
        """
        tables = {"": self} if masks is None else {"": self, MASKS: masks}
        content, sections = self.digest(classes), self.sections(more)
        if masks is not None:
            content = hashlib.sha256(f"{content} {masks.digest([])}".encode()).hexdigest()
            sections |= masks.sections(prefix=MASKS)
        return {
            "n": len(self),
            "classes": classes,
            "num_classes": len(classes) or max(self._labels) + 1,
            "content_digest": content,
            "bases": {prefix: table.base for prefix, table in tables.items()},
            "urls": any(is_url(each.base) or any(map(is_url, each.folders)) for each in tables.values()),
        }, sections


def _folder_of(base: str) -> bytes:
    return os.fsencode(base.rstrip("/") + "/")


def joined(base: bytes, path: bytes) -> bytes:
    """Return a path, which is relative to `base` unless it is absolute or a URL; `base` ends in a slash."""
    return path if path.startswith(b"/") or is_url(path) else base + path


def _links_in(folder: bytes) -> frozenset[bytes] | None:
    """Return the names of the links in a folder; None if it cannot be listed (its files may still be readable)."""
    if is_url(folder):
        return frozenset()
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if entry.is_symlink())
    except OSError:
        return None


def rows_of(container: Container, more: str = "", prefix: str = "") -> NumberRows:
    """Return the rows of the files, see `FileTableSource`."""
    return container.rows(f"{prefix}files", f"QqI{more}Q", struct.calcsize(f"=QqI{more}"))


class FileTableSource(Source):
    """The labels and names of a `Source` whose index was built from a `FileTable`.

    `more` is the form of the further numbers of each file, as in `struct`; `prefix` begins the names of the sections.
    """

    def __init__(self, container: Container, more: str = "", prefix: str = "") -> None:
        self._names = f"{prefix}names"
        self._folders = f"{prefix}folder_names"
        self._classes: list[str] = container.meta["classes"]
        self._container = container
        self._rows = rows_of(container, more, prefix)
        self._folder_ends = container.rows(f"{prefix}folder_ends", "QQ", 8)
        self._folder_names: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def entry(self, index: int) -> tuple[int, ...]:
        """Return the label, the number of the folder, and the further numbers."""
        return self._rows[index][1:-1]

    def label(self, index: int) -> int:
        return self.entry(index)[0]

    def labels(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        return self._rows.column(start, stop, "=i8", struct.calcsize("=Q"))

    def name(self, index: int) -> str:
        return os.fsdecode(self._path(self._rows[index]))

    def _path(self, row: tuple[int, ...]) -> bytes:
        return self._folder(row[2]) + self._container.piece(self._names, row[0], row[-1])

    def _folder(self, number: int) -> bytes:
        name = self._folder_names.get(number)
        if name is None:
            if len(self._folder_names) >= _FOLDERS_KEPT:
                self._folder_names.clear()
            name = self._folder_names[number] = self._container.piece(self._folders, *self._folder_ends[number])
        return name


class FileSource(FileTableSource):
    """A `Source` of images that are files or objects, and of their masks; with the prefix `MASKS`, of the masks alone.

    Objects that were listed with their bucket have two further numbers: `RemoteRead.size` and `RemoteRead.version`.
    """

    def __init__(self, container: Container, spec: Any, roots: Roots, prefix: str = "", more: str = "") -> None:
        meta = container.meta
        self._has_versions = bool(meta.get("versions")) and not prefix
        super().__init__(container, "QQ" if self._has_versions else more, prefix)
        self._base = _folder_of(meta["bases"][prefix])
        has_masks = not prefix and MASKS in meta["bases"]
        self._masks = FileSource(container, spec, roots, MASKS) if has_masks else None
        self._names_urls = bool(meta["urls"])
        self._local = LocalFiles(roots)
        self._age = hash((*meta["sizes"], *meta["mtimes_ns"]))  # of a list that names objects

    def read(self, index: int) -> Record:
        return self.record(index, self._rows[index])

    def record(self, index: int, row: tuple[int, ...]) -> Record:
        """As `read`, of a row of the listing."""
        image = self._encoded(row)
        if self._masks is None:
            return {"image": image, "label": row[1]}
        try:
            mask = self._masks.read(index)["image"]
        except SampleError as error:
            raise SampleError(f"its mask {printable(self._masks.name(index))}: {error.reason}") from error
        return {"image": image, "mask": mask, "label": row[1]}

    def stamp(self, index: int) -> int:
        row = self._rows[index]
        wanted = self._wanted(row)
        if wanted is None:
            mine = file_stamp(self._local.status(self._file(row)))
        else:  # as it was listed, because `read` refuses an object that has changed since
            mine = hash((wanted.size, wanted.version)) if self._has_versions else self._age
        return mine if self._masks is None else hash((mine, self._masks.stamp(index)))

    @property
    def reads_ahead(self) -> bool:
        return self._names_urls or self._local.is_slow or (self._masks is not None and self._masks.reads_ahead)

    def prefetch(self, indices: Sequence[int]) -> None:
        rows = list(map(self._rows.__getitem__, indices))
        if self._names_urls:
            remote.link().want(wanted for row in rows if (wanted := self._wanted(row)) is not None)
        if self._local.is_slow:
            self._local.open([self._file(row) for row in rows if self._wanted(row) is None])
        if self._masks is not None:
            self._masks.prefetch(indices)

    def with_files(self, index: int, reason: str) -> str:
        if self._masks is None or not reason.startswith("mask: "):  # the image is named by `name`
            return reason
        return f"{reason} (mask {self._masks.name(index)})"

    def _encoded(self, row: tuple[int, ...]) -> bytes:
        wanted = self._wanted(row)
        if wanted is not None:
            return remote_bytes(wanted)
        path = self._file(row)
        try:
            return self._local.read(path)
        except SampleError as error:
            if isinstance(error.__cause__, FileNotFoundError):  # perhaps the base is wrong, and names do not show it
                raise SampleError(f"{error.reason}: {printable(os.fsdecode(path))}") from error.__cause__
            raise

    def _file(self, row: tuple[int, ...]) -> bytes:
        return joined(self._base, self._path(row))

    def _wanted(self, row: tuple[int, ...]) -> remote.RemoteRead | None:
        """Return the read of an object; None for a file."""
        if not self._names_urls or not is_url(url := self._file(row)):
            return None
        size, version = row[3:5] if self._has_versions else (-1, 0)
        return remote.RemoteRead(os.fsdecode(url), size=size, version=version)


class FileTableReader(ScanningReader):
    """A reader of listed files, whose index is made from a `FileTable`."""

    source: Callable[[Container, Any, Roots], Source] = FileSource

    def check_roots(self, container: Container) -> None:
        """As `ScanningReader.check_roots`: every folder that holds files."""
        for prefix, base in container.meta["bases"].items():
            names = container.section(f"{prefix}folder_names")
            ends = memoryview(container.section(f"{prefix}folder_ends")).cast("Q")
            for start, end in itertools.pairwise(ends):
                self.roots.check_path("the folder", joined(_folder_of(base), names[start:end]))
