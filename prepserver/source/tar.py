"""WebDataset shards: which files a tar holds, which of them make a sample, and reading one sample.

A shard is listed by its headers alone, which is one read of a kilobyte for each file; of a class number, which is in
the same kilobyte, its text too. Tars of all dialects that WebDataset writers use are read: ustar, GNU long names, pax.
"""

from __future__ import annotations

import itertools
import os
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError, printable, unusable
from prepserver.source.files import FileSource
from prepserver.source.roots import Roots, open_below
from prepserver.source.samples import MAX_ENCODED_BYTES, Record
from prepserver.source.shards import Shards

BLOCK = 512
MISSING = (1 << 64) - 1
"""In the place of an offset: the sample has no such file."""

_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
_MOST_SHARDS = 1_000_000
_LONG_NAME_MOST = 1 << 16
_PAX_RECORD = re.compile(rb"\d{1,9} (path|size)=")

# Types of members.
_REGULAR = (b"0", b"\0", b"7")
_NAMING = (b"L", b"x")  # what follows is of the next member: a long name of GNU's, a pax header
_FOR_OTHERS = (b"g", b"K")


def expand(pattern: str) -> list[str]:
    """The paths that a pattern with braces names, in order: ``{a,b}``, and ``{000..127}`` padded as its first number.

    Raises:
        SourceError: It names too many, or a brace holds nothing of the kind.
    """
    head, brace, rest = pattern.partition("{")
    if not brace:
        return [pattern]
    inside, closed, tail = rest.partition("}")
    if not closed or not inside:
        raise SourceError(f"{pattern}: braces hold a,b or 000..127")
    first, dots, last = inside.partition("..")
    if dots:
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) <= int(first) + _MOST_SHARDS):
            raise SourceError(f"{pattern}: {{{inside}}} is no range; write it as {{000..127}}")
        names = [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    else:
        names = inside.split(",")
    tails = expand(tail)
    if len(names) * len(tails) > _MOST_SHARDS:
        raise SourceError(f"{pattern} names more than {_MOST_SHARDS} shards")
    return [f"{head}{name}{each}" for name in names for each in tails]


@dataclass(slots=True)
class ListedShard:
    """What a shard holds.

    Attributes:
        size: Bytes of the file.
        mtime_ns: Its time, taken before it was listed.
        keys: Of the samples.
        labels: Their class numbers; 0 without labels.
        places: For each column that is read from the shard, (offsets, lengths) by sample; see `MISSING`.
    """

    size: int
    mtime_ns: int
    keys: list[bytes] = field(default_factory=list)
    labels: array[int] = field(default_factory=lambda: array("q"))
    places: list[tuple[array[int], array[int]]] = field(default_factory=list)


def list_shard(
    path: str, extensions: Sequence[str], label: str | None, roots: Roots | None, found: Callable[[], None]
) -> ListedShard:
    """List one shard.

    Args:
        path: Absolute.
        extensions: Of each column that is read, several separated by ``;``.
        label: Extension of the class number.
        roots: Where it must lie.
        found: Called for each sample.

    Raises:
        SourceError: Missing, unreadable, compressed, cut off, no tar, or a class that is no number.
    """
    try:
        descriptor = open_below(roots, "the shard", path)
    except OSError as error:
        raise unusable("the shard", path, error) from error
    try:
        status = os.fstat(descriptor)
        listed = ListedShard(status.st_size, status.st_mtime_ns, places=[(array("Q"), array("I")) for _ in extensions])
        wanted = [each.lower().encode().split(b";") for each in extensions]
        labelled = [] if label is None else label.lower().encode().split(b";")
        members = _members(path, descriptor, status.st_size)
        for key, files in itertools.groupby(members, key=lambda member: member.key):
            sample: dict[bytes, _Member] = {}
            for each in files:
                if sample.setdefault(each.extension, each) is not each:
                    raise SourceError(f"{path}: sample {_shown(key)} has two files .{_shown(each.extension)}")
            _add(path, listed, key, sample, wanted, labelled)
            found()
        return listed
    except OSError as error:
        raise unusable("the shard", path, error) from error
    finally:
        os.close(descriptor)


def _add(
    path: str,
    listed: ListedShard,
    key: bytes,
    sample: dict[bytes, _Member],
    wanted: list[list[bytes]],
    labelled: list[bytes],
) -> None:
    """Note a sample; one that has none of the wanted files is not one."""
    chosen = [next((sample[name] for name in names if name in sample), None) for names in wanted]
    if not any(chosen):
        return
    number = 0
    if labelled:
        text = next((sample[name].begin for name in labelled if name in sample), None)
        if text is None or not text.strip().isdigit() or int(text) >= 1 << 63:
            what = "has none" if text is None else f"is {_shown(text)!r}"
            raise SourceError(
                f"{path}: the class of sample {_shown(key)}, .{_shown(labelled[0])}, {what}; it must be a number from "
                "0. For samples without labels pass label=None"
            )
        number = int(text)
    listed.keys.append(key)
    listed.labels.append(number)
    for member, (offsets, lengths) in zip(chosen, listed.places, strict=True):
        offsets.append(MISSING if member is None else member.offset)
        lengths.append(0 if member is None else min(member.size, MAX_ENCODED_BYTES + 1))


@dataclass(slots=True)
class _Member:
    key: bytes
    extension: bytes
    offset: int
    size: int
    begin: bytes


def _members(path: str, descriptor: int, size: int) -> Iterator[_Member]:
    """The regular files of a tar that have an extension, in order."""
    at = 0
    given: dict[bytes, bytes] = {}  # what a header before a file's own says of it
    while (found := _header(path, descriptor, at, size, given)) is not None:
        kind, header, begin, length = found
        data = at + BLOCK
        at = data + -(-length // BLOCK) * BLOCK
        if kind in _NAMING:
            if length > _LONG_NAME_MOST:
                raise SourceError(f"{path} is damaged: a name of {length} bytes at byte {data}")
            text = os.pread(descriptor, length, data)
            given |= {b"path": text.rstrip(b"\0")} if kind == b"L" else dict(_pax(text))
            continue
        if kind in _REGULAR:
            folder, slash, file = given.get(b"path", _name(header)).rpartition(b"/")
            stem, _, extension = file.partition(b".")
            if extension:
                yield _Member(folder + slash + stem, extension.lower(), data, length, begin[:length])
        if kind not in _FOR_OTHERS:
            given.clear()


def _header(
    path: str, descriptor: int, at: int, size: int, given: Mapping[bytes, bytes]
) -> tuple[bytes, bytes, bytes, int] | None:
    """Read the header at a place: the kind of member, the header, the begin of its data, its length; None at the end.

    Raises:
        SourceError: No header, or not all of the member is there.
    """
    block = os.pread(descriptor, 2 * BLOCK, at)
    header = block[:BLOCK]
    if at == 0:
        for magic, what in _COMPRESSED.items():
            if header.startswith(magic):
                raise SourceError(f"{path} is compressed ({what}), so no sample can be read alone: unpack it once")
        if not header:
            raise SourceError(f"{path} is empty")
    if header.count(0) == len(header):
        return None  # some writers end without empty blocks; where bytes are missing, the last member said so
    try:
        if len(header) < BLOCK or sum(header) - sum(header[148:156]) + 256 != int(header[148:156].strip(b"\0 "), 8):
            raise ValueError
        kind = header[156:157]
        length = int(given[b"size"]) if b"size" in given and kind in _REGULAR else _number(header[124:136])
    except ValueError:
        raise SourceError(f"{path} is damaged, or no tar: there is no header at byte {at} of {size}") from None
    if at + BLOCK + length > size:
        raise SourceError(f"{path} is cut off: a file at byte {at} of {size} has {length} bytes. Copy it again")
    return kind, header, block[BLOCK:], length


def _number(text: bytes) -> int:
    """Octal, or in GNU's way in base 256.

    Raises:
        ValueError: Neither.
    """
    number = int.from_bytes(text[1:], "big") if text[0] == 0x80 else int(text.strip(b"\0 ") or b"0", 8)
    if number < 0:
        raise ValueError(number)
    return number


def _name(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _pax(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The records of a pax header that matter here: each is "length key=value" and a line end."""
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


class TarSource:
    """A `Source` over listed shards.

    Its index has the sections of `FileTable`, in which a shard is a folder that keys lie in; the further numbers of
    each sample are the number of the shard (uint32), then (offset, length) of each column (uint64, uint32).
    """

    def __init__(self, container: Container, columns: Sequence[str], label: bool, roots: Roots | None) -> None:
        """Look where the sections are.

        Args:
            container: The index.
            columns: That are read from shards.
            label: Whether samples have one.
            roots: Where shards must lie.
        """
        self._columns, self._has_label = columns, label
        self._files = FileSource(container, "/", more="I" + "QI" * len(columns))
        meta = container.meta
        self._shards = Shards(meta["shards"], meta["sizes"], roots, meta["mtimes_ns"])

    def __len__(self) -> int:
        return len(self._files)

    def read(self, index: int) -> Record:
        """As `Source.read`."""
        label, _, shard, *places = self._files.more(index)
        record: dict[str, Any] = {}
        for column, offset, length in zip(self._columns, places[::2], places[1::2], strict=True):
            if offset == MISSING:
                raise SampleError(f"{self._shards.name(shard)} has no {column} for it")
            if length > MAX_ENCODED_BYTES:
                raise SampleError(f"its {column} has more than the {MAX_ENCODED_BYTES} bytes that one may have")
            record[column] = self._shards.read(shard, offset, length)
            if len(record[column]) != length or not length:
                raise SampleError(f"its {column} is {'cut off' if length else 'empty'} in {self._shards.name(shard)}")
        if self._has_label:
            record["label"] = label
        return record

    def label(self, index: int) -> int:
        """As `Source.label`."""
        return self._files.label(index)

    def name(self, index: int) -> str:
        """As `Source.name`: the shard and the key."""
        return self._files.name(index)

    def classes(self) -> list[str]:
        """As `Source.classes`: none."""
        return []
