"""How `FileList` is read: text lines ``path label``, or CSV rows ``path,label``.

Text: the label follows the last tab, or else the last blank, so paths may hold blanks. Empty lines and lines that begin
with ``#`` are skipped. CSV (a name that ends in .csv): two columns, the usual quoting; the header ``path,label`` is
optional. The index stays valid while the list has the same time and size.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.sources.file_list import FileList
from prepserver.pipeline.urls import canonical, is_url
from prepserver.source.container import Container
from prepserver.source.errors import SourceError, printable, unusable
from prepserver.source.files import MASKS, FileSource, FileTable, check_folders, table_meta
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.reader import Scan, ScanningReader
from prepserver.source.roots import Roots
from prepserver.source.samples import Source
from prepserver.source.storage import open_file, statuses, stream

_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf)", re.IGNORECASE)
_MAX_LABEL = (1 << 63) - 1
_REPORT_LINES = 4096


class FileListReader(ScanningReader):
    kind = FileList
    spec: FileList

    @property
    def _base(self) -> str:
        return os.path.dirname(self.spec.path)

    def scan(self, progress: Progress, roots: Roots | None) -> Scan:
        table, masks = FileTable(), FileTable() if self.spec.masks else None
        meta = _read_list(self.spec.path, table, masks, progress, roots)
        sections, base = table.sections(), os.fsencode(self._base) + b"/"
        places = Places()
        table.add_to(places, base)
        if masks is not None:
            sections |= masks.sections(prefix=MASKS)
            masks.add_to(places, base)
        if roots is not None:
            self.check_roots(sections.__getitem__, roots)
        progress.finished(len(table))
        times = [] if is_url(self.spec.path) else [meta["mtime_ns"]]
        return Scan(meta, sections, times, places.found())

    def check_roots(self, sections: Callable[[str], memoryview], roots: Roots) -> None:
        check_folders(sections, self._base, roots)
        if self.spec.masks:
            check_folders(sections, self._base, roots, prefix=MASKS)

    def is_current(self, container: Container) -> bool:
        return statuses([self.spec.path]) == [(container.meta["size_bytes"], container.meta["mtime_ns"])]

    def read_by(self, container: Container, roots: Roots | None) -> Source:
        return FileSource(container, self._base, roots, self._base if self.spec.masks else None)


def _read_list(
    path: str, table: FileTable, masks: FileTable | None, progress: Progress, roots: Roots | None
) -> dict[str, Any]:
    """Read a list file into a table of files, and one of masks if each line names a mask.

    Returns:
        The metadata of the index, with the time and the size of the list from before it was read.

    Raises:
        SourceError: The list is missing, unreadable, empty, or has a bad line, which the text names by its number.
    """
    labels: list[str] = []
    shared: dict[str, str] = {}  # one object for each distinct label, not one for each line
    lines: list[int] = []
    try:
        with contextlib.closing(open_file(roots, "the list", path)) as listed:
            # csv needs newline=""; utf-8-sig drops the mark that spreadsheets write.
            file = io.TextIOWrapper(stream(listed), encoding="utf-8-sig", errors="surrogateescape", newline="")
            rows = (_csv_rows if path.lower().endswith(".csv") else _text_rows)(path, file, masks is not None)
            for number, name, label, mask in rows:
                if not (_add(table, name) and label and (masks is None or _add(masks, mask))):
                    wants = "a path and a label, such as 'cats/1.jpg 3'" + ", and the path of a mask" * (
                        masks is not None
                    )
                    raise SourceError(f"{path}, line {number}: needs {wants}")
                labels.append(shared.setdefault(label, label))
                lines.append(number)
                if len(labels) % _REPORT_LINES == 0:
                    progress.found(len(labels))
    except SpecError as error:
        raise SourceError(f"{path}, after line {lines[-1] if lines else 0}: {error}") from error
    except OSError as error:
        raise unusable("the list", path, error) from error
    if not labels:
        raise SourceError(f"the list {path} names no files; a line is 'path label', in a .csv file 'path,label'")
    numbers, classes = _numbered(path, labels, list(shared), lines, next(iter(table))[1])
    table.relabel([numbers[label] for label in labels])
    return table_meta(table, classes, masks) | {"mtime_ns": listed.version, "size_bytes": listed.size}


def _numbered(
    path: str, labels: list[str], distinct: list[str], lines: list[int], first: bytes
) -> tuple[dict[str, int], list[str]]:
    """Return the number of each `distinct` label, and the names of the classes if labels are names.

    `lines` are the line numbers of `labels`, for errors, and `first` is the name of the first file, without its folder.
    """
    numbers = {label: int(label) for label in distinct if _INTEGER.fullmatch(label)}
    classes: list[str] = []
    if len(numbers) < len(distinct):
        if all(map(_NUMBER.fullmatch, distinct)):
            label = next(label for label in distinct if label not in numbers)
            raise SourceError(
                f"{path}, line {lines[labels.index(label)]}: label {printable(label)} is a number, not an "
                "integer; a label is the number or the name of a class"
            )
        rest = [label in numbers for label in labels[1:]]
        if path.lower().endswith(".csv") and b"." not in first and rest and all(rest):
            raise SourceError(
                f"{path}, line {lines[0]}: label {printable(labels[0])!r} is the only one that is not an integer. If "
                "this line is a header, make it path,label, or leave it out"
            )
        classes = sorted(distinct)
        numbers = {name: number for number, name in enumerate(classes)}
    for label, value in numbers.items():
        if not 0 <= value <= _MAX_LABEL:
            raise SourceError(
                f"{path}, line {lines[labels.index(label)]}: label {printable(label)}; "
                "an integer label must be >= 0 and < 2**63"
            )
    return numbers, classes


def _add(table: FileTable, name: str) -> bool:
    """Append a file; return False if the name is no file's."""
    folder, slash, base = name.rpartition("/")
    if not base or "\0" in name:
        return False
    if "://" in folder and (url := canonical("path", name)) is not None:
        folder, slash, base = url.rpartition("/")
    table.add(os.fsencode(folder + slash), os.fsencode(base), 0)
    return True


def _text_rows(path: str, lines: Iterable[str], masks: bool) -> Iterator[tuple[int, str, str, str]]:
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if masks:
            cells = [cell.strip() for cell in line.split("\t")]
            if len(cells) != 3:
                raise SourceError(f"{path}, line {number}: {len(cells)} columns; a line is 'path<TAB>label<TAB>mask'")
            yield number, cells[0], cells[1], cells[2]
            continue
        parts = line.rsplit("\t" if "\t" in line else None, 1)
        if len(parts) != 2:
            hint = "; a file of 'path,label' must have a name that ends in .csv" if "," in line else ""
            raise SourceError(f"{path}, line {number}: no label; a line is 'path label'{hint}")
        yield number, parts[0].strip(), parts[1].strip(), ""


def _csv_rows(path: str, lines: Iterable[str], masks: bool) -> Iterator[tuple[int, str, str, str]]:
    header = ["path", "label", *(["mask"] if masks else [])]
    reader = csv.reader(lines, strict=True)
    try:
        for place, row in enumerate(row for row in reader if row):
            if place == 0 and [cell.strip().lower() for cell in row] == header:
                continue
            if len(row) != len(header):
                raise SourceError(
                    f"{path}, line {reader.line_num}: {len(row)} columns; a row is '{','.join(header)}', "
                    "a path that holds a comma goes in double quotes"
                )
            yield reader.line_num, row[0].strip(), row[1].strip(), row[2].strip() if masks else ""
    except csv.Error as error:
        raise SourceError(f"{path}, line {reader.line_num}: {error}") from error
