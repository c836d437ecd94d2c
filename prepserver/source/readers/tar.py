"""How `Tar` is read: WebDataset shards as ranges of bytes.

Listing reads only headers, a kilobyte for each file, which includes the text of a class number. It reads all dialects
of tar that WebDataset writers use: ustar, GNU long names, pax.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prepserver.pipeline.kinds import Bytes, Image, Mask
from prepserver.pipeline.sources.tar import Tar
from prepserver.source.container import Container
from prepserver.source.errors import SourceError, printable
from prepserver.source.ranges import MISSING, Listed, RangesReader, RangesSource, refuse_compressed
from prepserver.source.roots import Roots
from prepserver.source.storage import File
from prepserver.source.values import at_key, file_value, json_of_file, value_of

_BLOCK = 512
_LONG_NAME_MOST = 1 << 16
_PAX_RECORD = re.compile(rb"\d{1,9} (path|size)=")

# Types of members.
_REGULAR = (b"0", b"\0", b"7")
_NAMING = (b"L", b"x")  # GNU long name, pax header: both describe the next member
_ELSEWHERE = (b"1", b"2", b"S")  # hard links, symbolic links, sparse files: their bytes do not follow as one range
_WITHOUT_BYTES = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders; a size counts for nothing
_FOR_OTHERS = (b"g", b"K")  # global pax header, GNU long link: neither describes the next file


class TarSource(RangesSource):
    def __init__(self, container: Container, spec: Tar, roots: Roots) -> None:
        super().__init__(container, spec, roots)
        self._parsed: tuple[bytes | None, dict[str, Any]] = None, {}  # the last JSON file, and what it holds
        self._members = {column: (spec.columns[column], spec.member(column)[1]) for column in self._columns}

    def value(self, column: str, data: bytes) -> Any:
        kind, key = self._members[column]
        if isinstance(kind, Image | Mask | Bytes):
            return data
        if not key:
            return file_value(column, kind, data)
        if self._parsed[0] is not data:  # several columns may be keys of one file
            self._parsed = data, json_of_file(column, data)
        return value_of(column, kind, at_key(self._parsed[1], key, kind, f"the file of its {column}"))


class TarReader(RangesReader):
    spec: Tar
    source = TarSource
    what = "the shard"
    edition = ".2"  # 0.2 left out samples with a label and no image, and its digest depended on the folder

    @property
    def columns(self) -> dict[str, str]:
        return {column: self.spec.member(column)[0] for column in self.source.stored(self.spec)}

    def list_file(self, path: str, file: File, found: Callable[..., None]) -> Listed:
        listed = Listed.empty(len(self.columns))
        wanted = [_extensions(name) for name in self.columns.values()]
        labelled = _extensions(self.spec.member("label")[0]) if self.spec.has_listed_label else []
        for key, files in itertools.groupby(_members(path, file), key=lambda member: member.key):
            sample: dict[bytes, _Member] = {}
            for each in files:
                if sample.setdefault(each.extension, each) is not each:
                    raise SourceError(f"{path}: sample {_shown(key)} has two files .{_shown(each.extension)}")
            try:
                self._add(path, listed, key, sample, wanted, labelled)
            except SourceError as error:
                if max(each.offset + each.size for each in sample.values()) + _BLOCK <= file.size:
                    raise
                reason = f"may be cut off: it ends at byte {file.size}, within sample {_shown(key)} or after it"
                raise SourceError(f"{path} {reason}. Copy it again. If it is whole: {error}") from error
            found()
        return listed

    def _add(
        self,
        path: str,
        listed: Listed,
        key: bytes,
        sample: dict[bytes, _Member],
        wanted: list[list[bytes]],
        labelled: list[bytes],
    ) -> None:
        """Note a sample. One that has none of the wanted files counts only if `columns` declares them."""
        chosen = [next((sample[name] for name in names if name in sample), None) for names in wanted]
        label = next((sample[name] for name in labelled if name in sample), None)
        is_declared = self.spec.declared is not None
        if not any(chosen) and label is None and not is_declared:
            return
        for member in (*chosen, label):
            if member is not None and not member.is_plain:
                raise SourceError(
                    f"{path}: file .{_shown(member.extension)} of sample {_shown(key)} is a link or a sparse file; "
                    "write the shard anew with plain files (tar -h --hard-dereference, without --sparse)"
                )
        number = 0
        if labelled:
            text = None if label is None else label.begin
            if text is None or not text.strip().isdigit() or int(text) >= 1 << 63:
                what = "is missing" if text is None else f"holds {_shown(text)!r}"
                has = ", ".join(f".{_shown(name)}" for name in sample)
                remedy = (
                    "If the column has another name than label, only this sample is bad"
                    if is_declared
                    else "label= names the extension; label=None leaves labels out"
                )
                raise SourceError(
                    f"{path}: the label .{_shown(labelled[0])} of sample {_shown(key)} {what}; it must be a text file "
                    f"with a number from 0. The sample has {has}. {remedy}"
                )
            number = int(text)
        listed.keys.append(key)
        listed.labels.append(number)
        for member, (offsets, lengths) in zip(chosen, listed.places, strict=True):
            offsets.append(MISSING if member is None else member.offset)
            lengths.append(0 if member is None else member.size)


def _extensions(text: str) -> list[bytes]:
    return text.lower().encode().split(b";")


@dataclass(slots=True)
class _Member:
    key: bytes
    extension: bytes
    offset: int
    size: int
    begin: bytes
    is_plain: bool


def _members(path: str, file: File) -> Iterator[_Member]:
    """Yield the files and links of a tar that have an extension, in order, but no hidden ones (``._a.jpg``)."""
    at = 0
    given: dict[bytes, bytes] = {}  # what earlier headers say about the next file
    while (found := _header(path, file, at, given)) is not None:
        kind, header, begin, length = found
        data = at + _BLOCK
        at = data + -(-length // _BLOCK) * _BLOCK
        if kind in _NAMING:
            if length > _LONG_NAME_MOST:
                raise SourceError(f"{path} is damaged: a name of {length} bytes at byte {data}")
            text = file.read(length, data)
            given |= {b"path": text.rstrip(b"\0")} if kind == b"L" else dict(_pax(text))
            continue
        if kind in _REGULAR or kind in _ELSEWHERE:
            folder, slash, name = given.get(b"path", _name(header)).rpartition(b"/")
            stem, _, extension = name.partition(b".")
            if stem and extension:
                yield _Member(folder + slash + stem, extension.lower(), data, length, begin[:length], kind in _REGULAR)
        if kind not in _FOR_OTHERS:
            given.clear()


def _header(path: str, file: File, at: int, given: Mapping[bytes, bytes]) -> tuple[bytes, bytes, bytes, int] | None:
    """Return type, header, first bytes and length in bytes of the member whose header is at byte `at`; None at the end.

    `given` is what earlier headers say about it. The first bytes are at most `_BLOCK`.

    Raises:
        SourceError: There is no header, or the member is cut off.
    """
    block, size = file.read(2 * _BLOCK, at), file.size
    header = block[:_BLOCK]
    if at == 0:
        refuse_compressed(path, header)
        if not header:
            raise SourceError(f"{path} is empty")
    if header.count(0) == len(header):
        return None  # some writers add no empty blocks at the end; a cut shard was refused at its last member
    try:
        if len(header) < _BLOCK or sum(header) - sum(header[148:156]) + 256 != int(header[148:156].strip(b"\0 "), 8):
            raise ValueError
        kind = header[156:157]
        length = int(given[b"size"]) if b"size" in given and kind in _REGULAR else _number(header[124:136])
        length *= kind not in _WITHOUT_BYTES
        if length < 0:  # the next header would lie before this one
            raise ValueError
    except ValueError:
        raise SourceError(f"{path} is damaged, or not a tar: there is no header at byte {at} of {size}") from None
    if at + _BLOCK + length > size:
        raise SourceError(f"{path} is cut off: a file at byte {at} of {size} has {length} bytes. Copy it again")
    return kind, header, block[_BLOCK:], length


def _number(text: bytes) -> int:
    """Return a number in octal, or in base 256 as GNU writes it; raise ValueError for anything else."""
    return int.from_bytes(text[1:], "big") if text[0] == 0x80 else int(text.strip(b"\0 ") or b"0", 8)


def _name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the path and size records of a pax header; a record is "length key=value" and a line end."""
    at = 0
    while at < len(text):
        digits = text[at : at + 10].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        if not length:
            return
        if match := _PAX_RECORD.match(text, at, at + length):
            yield match[1], text[match.end() : at + length - 1]
        at += length


def _shown(text: bytes) -> str:
    return printable(os.fsdecode(text[:100]))
