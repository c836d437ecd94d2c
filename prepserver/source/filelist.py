"""Reading a list of files: text lines ``path label``, or CSV rows ``path,label``.

Text: the label is what follows the last tab, or else the last blank; so paths may hold blanks. Empty lines
and lines that begin with ``#`` are skipped. CSV (a name that ends in .csv): two columns, quoting as usual,
the header ``path,label`` optional. If every label is an integer, labels are taken as they are; otherwise the
sorted distinct labels are the classes, by code point. Numbers that are not integers are refused.
"""

from __future__ import annotations

import csv
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TextIO

from prepserver.source.errors import SourceError, printable, unusable
from prepserver.source.files import FileTable
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.roots import Roots, open_below

_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(nan|inf)", re.IGNORECASE)
_MAX_LABEL = (1 << 63) - 1
_REPORT_LINES = 4096


@dataclass(frozen=True)
class ParsedList:
    """What a list said.

    Attributes:
        table: The files.
        masks: Their masks, if it names them.
        classes: Names of the classes; empty if the labels are integers.
        mtime_ns: Of the list file, taken before it was read.
        size_bytes: Of the list file.
    """

    table: FileTable
    masks: FileTable | None
    classes: list[str]
    mtime_ns: int
    size_bytes: int


def parse_list(path: str, progress: Progress, roots: Roots | None = None, *, masks: bool = False) -> ParsedList:
    """Read a list file.

    Args:
        path: Absolute path of the list.
        progress: Told the number of files read.
        roots: Where the list must lie, links followed.
        masks: Whether each line names a mask, too.

    Raises:
        SourceError: Missing, unreadable, empty, or a bad line, which is named by its number.
    """
    table, masked = FileTable(), FileTable() if masks else None
    labels: list[str] = []
    shared: dict[str, str] = {}  # one object for each distinct label, not one for each line
    lines: list[int] = []
    try:
        with _open(path, roots) as file:
            status = os.fstat(file.fileno())
            rows = _csv_rows(path, file, masks) if path.lower().endswith(".csv") else _text_rows(path, file, masks)
            for number, name, label, mask in rows:
                if not (_add(table, name) and label and (masked is None or _add(masked, mask))):
                    wants = "a path and a label, such as 'cats/1.jpg 3'" + ", and the path of a mask" * masks
                    raise SourceError(f"{path}, line {number}: needs {wants}")
                labels.append(shared.setdefault(label, label))
                lines.append(number)
                if len(labels) % _REPORT_LINES == 0:
                    progress.found(len(labels))
    except OSError as error:
        raise unusable("the list", path, error) from error
    if not labels:
        raise SourceError(f"the list {path} names no files; a line is 'path label', in a .csv file 'path,label'")
    numbers, classes = _numbered(path, labels, list(shared), lines, next(iter(table))[1])
    table.relabel([numbers[label] for label in labels])
    return ParsedList(table, masked, classes, status.st_mtime_ns, status.st_size)


def _numbered(
    path: str, labels: list[str], distinct: list[str], lines: list[int], first: bytes
) -> tuple[dict[str, int], list[str]]:
    """The number of each distinct label, and the names of the classes if these are names.

    Args:
        path: Of the list.
        labels: Of all files.
        distinct: Each once.
        lines: Where they stand.
        first: Name of the first file, without its folder.

    Raises:
        SourceError: They are no labels.
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


def list_places(table: FileTable, base: bytes) -> Places:
    """Where the files of a list really lie.

    Folders are listed to find the links among their files: on a network file system that is a hundred times faster
    than to ask for each file.

    Args:
        table: The files.
        base: The folder of the list, which relative paths begin at; with a slash at its end.
    """
    places = Places()
    folders = [folder if folder.startswith(b"/") else base + folder for folder in table.folders]
    links: list[frozenset[bytes] | None] = []
    for folder in folders:
        places.add_folder(folder)
        links.append(_links_in(folder))
    if any(found is None or found for found in links):
        for number, name in table:
            here = links[number]
            if name in here if here is not None else os.path.islink(folders[number] + name):
                places.add_file(folders[number] + name)
    return places


def _links_in(folder: bytes) -> frozenset[bytes] | None:
    """Names of the links in a folder; None where it cannot be listed, though its files may be there."""
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if entry.is_symlink())
    except OSError:
        return None


def _open(path: str, roots: Roots | None) -> TextIO:
    descriptor = open_below(roots, "the list", path)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceError(f"the list {path} is not a file; FileList takes a text or CSV file")
    # newline="" is what csv asks for; utf-8-sig drops the mark that spreadsheets write.
    return open(descriptor, encoding="utf-8-sig", errors="surrogateescape", newline="")


def _add(table: FileTable, name: str) -> bool:
    """Append a file, if this is the name of one."""
    folder, slash, base = name.rpartition("/")
    if not base or "\0" in name:
        return False
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
