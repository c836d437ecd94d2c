"""How `FileList` is read: text lines ``path label``, or CSV rows ``path,label``.

Text: the label follows the last tab, or else the last blank, so paths may hold blanks. Empty lines and lines that begin
with ``#`` are skipped. CSV (a name that ends in .csv): two columns, the usual quoting; the header ``path,label`` is
optional, and names the columns in any order. The index stays valid while the list has the same time and size.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.sources.file_list import FileList
from prepserver.pipeline.urls import canonical
from prepserver.source.errors import SourceError, printable
from prepserver.source.files import FileTable, FileTableReader
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.reader import Scan
from prepserver.source.storage import File, open_file, stream

_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf)", re.IGNORECASE)
_MAX_LABEL = (1 << 63) - 1
_REPORT_LINES = 4096


class FileListReader(FileTableReader):
    spec: FileList

    def scan(self, progress: Progress) -> Scan:
        path, base = self.spec.path, os.path.dirname(self.spec.path)
        files, masks = FileTable(base), FileTable(base) if self.spec.masks else None
        labels: list[str] = []
        shared: dict[str, str] = {}  # one object for each distinct label, not one for each line
        lines: list[int] = []
        try:
            with open_file(self.roots, "the list", path) as listed:
                for number, name, label, mask in _rows(path, listed, masks is not None):
                    if not (_add(files, name) and label and (masks is None or _add(masks, mask))):
                        wants = "a path and a label, such as 'cats/1.jpg 3'"
                        wants += ", and the path of a mask" if masks is not None else ""
                        raise SourceError(f"{path}, line {number}: needs {wants}")
                    labels.append(shared.setdefault(label, label))
                    lines.append(number)
                    if len(labels) % _REPORT_LINES == 0:
                        progress.found(len(labels))
        except SpecError as error:
            raise SourceError(f"{path}, after line {lines[-1] if lines else 0}: {error}") from error
        if not labels:
            raise SourceError(f"the list {path} names no files; a line is 'path label', in a .csv file 'path,label'")
        numbers, classes = _numbered(path, labels, list(shared), lines, next(iter(files))[1])
        files.relabel([numbers[label] for label in labels])
        places = files.add_to(Places())
        if masks is not None:
            masks.add_to(places)
        return Scan(*files.contents(classes, masks), places, [(path, listed)])


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
    """Append a file; return False if the name cannot be a file's."""
    folder, _, base = name.rpartition("/")
    if not base or "\0" in name:
        return False
    url = canonical("path", name) if "://" in folder else None
    table.add(os.fsencode(url or name), 0)
    return True


def _rows(path: str, listed: File, masks: bool) -> Iterator[tuple[int, str, str, str]]:
    """Yield the number of each line that names a file, its path, its label, and the path of its mask."""
    # csv needs newline=""; utf-8-sig drops the mark that spreadsheets write.
    lines = io.TextIOWrapper(stream(listed), encoding="utf-8-sig", errors="surrogateescape", newline="")
    return (_csv_rows if path.lower().endswith(".csv") else _text_rows)(path, lines, masks)


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
    places = list(range(len(header)))  # of these columns
    reader = csv.reader(lines, strict=True)
    try:
        for number, row in enumerate(row for row in reader if row):
            names = [cell.strip().lower() for cell in row] if number == 0 else []
            if sorted(names) == sorted(header):
                places = [names.index(name) for name in header]
                continue
            if len(row) != len(header):
                raise SourceError(
                    f"{path}, line {reader.line_num}: {len(row)} columns; a row is '{','.join(header)}', a path that "
                    "holds a comma goes in double quotes. Csv(path, columns, names=...) reads tables of other columns"
                )
            path_cell, label, *mask = [row[place].strip() for place in places]
            yield reader.line_num, path_cell, label, mask[0] if mask else ""
    except csv.Error as error:
        raise SourceError(
            f"{path}, line {reader.line_num}: it is not CSV, {error}; double the quotes in cells"
        ) from error
