"""Reading a packed dataset: a few large shards of records, and an index of all of them.

The index is one file in the dataset's own folder, named after its content; it holds labels and the names
of the original files as the index of a folder does, and where each record is. A sample is one read of one range.

Nothing in a shard is trusted: see `prepserver.protocol.packed`. Checksums cover each bit of a record, and all are
checked before it is decoded: a damaged shard has bad samples, never other rows. Written by `prepserver.pack`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prepserver.checksum import crc32
from prepserver.protocol.packed import (
    INDEXED,
    KEPT,
    BrokenRecordError,
    Head,
    IndexedScan,
    read_head,
    read_record,
    sample_crc,
)
from prepserver.source.container import BrokenContainerError, Container
from prepserver.source.errors import SampleError, SourceError, unusable
from prepserver.source.files import FileSource
from prepserver.source.places import Places
from prepserver.source.roots import Roots, open_below
from prepserver.source.samples import Record
from prepserver.source.shards import Shards

INDEX_KEY = "packed dataset 2"
"""Marks an index of this version; raise the number when sections or records change."""

INDEX_PATTERN = "index-*.packed"
PLAN_NAME = "pack.json"
SHARD_PATTERN = "shard-*.packed"

_AGAIN = "the same prepserver pack again makes it anew, of the shards that are there"


def shard_name(number: int) -> str:
    """File name of a finished shard."""
    return f"shard-{number:05d}.packed"


def index_name(digest: str) -> str:
    """File name of the index whose content has this digest: another content never has the same name."""
    return f"index-{digest[:32]}.packed"


def find_index(root: Path) -> Path:
    """The index of a packed dataset.

    Raises:
        SourceError: There is no such folder, or it holds no finished packed dataset.
    """
    try:
        names = os.listdir(root)
    except OSError as error:
        raise unusable("the packed dataset", str(root), error) from error
    found = sorted(name for name in names if name.startswith("index-") and name.endswith(".packed"))
    if len(found) == 1:
        return root / found[0]
    if found:
        raise SourceError(f"{root} holds {len(found)} indexes of packed datasets; only one belongs there")
    if PLAN_NAME in names:
        raise SourceError(f"packing of {root} is not finished; run the same prepserver pack again to go on")
    raise SourceError(f"{root} holds no packed dataset; make one with prepserver pack SOURCE {root}")


def open_index(path: Path, roots: Roots | None = None) -> Container:
    """Open the index of a packed dataset, and check it to its last byte.

    Raises:
        SourceError: Gone, outside the roots, damaged, or of another version.
    """
    try:
        container = Container(path, roots)
    except OSError as error:
        raise unusable("the packed dataset's index", str(path), error) from error
    except BrokenContainerError as error:
        raise SourceError(f"the index of the packed dataset is damaged: {error}; {_AGAIN}") from error
    if container.meta.get("key") != INDEX_KEY:
        raise SourceError(f"{path} is no index of a packed dataset of this version; {_AGAIN}")
    return container


def packed_places(root: Path, path: Path, container: Container) -> Places:
    """Where the index at `path` and the shards of a packed dataset really lie."""
    places = Places()
    places.add_folder(os.fsencode(root))
    for each in (path, *(root / shard_name(number) for number in range(len(container.meta["shards"])))):
        if each.is_symlink():
            places.add_file(os.fsencode(each))
    return places


def check_shards(root: Path, container: Container, roots: Roots | None) -> None:
    """Check that the shards are there, lie below the roots, and have their sizes. Once when a dataset is attached.

    Raises:
        SourceError: Something is missing, outside the roots, or of another size.
    """
    for number, size in enumerate(container.meta["shards"]):
        path = root / shard_name(number)
        try:
            descriptor = open_below(roots, "the shard", str(path))
        except OSError as error:
            raise unusable("the shard", str(path), error) from error
        found = os.fstat(descriptor).st_size
        os.close(descriptor)
        if found != size:
            raise SourceError(f"the shard {path} has {found} bytes and should have {size}; copy or pack it again")


class PackedSource:
    """A `Source` over a packed dataset.

    Its index has the sections of `FileTable`; the further numbers of each sample are the number of the shard (uint32),
    the offset in it (uint64), the length of its records (uint32) and their `sample_crc` (uint32).
    """

    def __init__(
        self, container: Container, root: str, roots: Roots | None = None, wanted: Sequence[str] = ("image", "label")
    ) -> None:
        """Look where the sections are; O(1) but for the names of the classes and the sizes of the shards.

        Args:
            container: From `open_index`.
            root: Absolute path of the dataset.
            roots: Where shards must lie.
            wanted: The columns that samples shall have.
        """
        self._columns = columns_of(container.meta)
        self._wanted = tuple(wanted)
        # Labels and names are kept as those of files are; only their bytes lie elsewhere.
        self._files = FileSource(container, root, more="IQII")
        sizes: list[int] = container.meta["shards"]
        self._shards = Shards([f"{root}/{shard_name(number)}" for number in range(len(sizes))], sizes, roots)

    def __len__(self) -> int:
        return len(self._files)

    def read(self, index: int) -> Record:
        """As `Source.read`; the data of an indexed sample is an `IndexedScan`."""
        label, _, shard, offset, length, crc = self._files.more(index)
        data = self._shards.read(shard, offset, length)
        try:
            if len(data) != length:
                raise BrokenRecordError(f"only {len(data)} of {length} bytes are there")
            values = self._values(data, crc)
        except BrokenRecordError as error:
            raise SampleError(f"{shard_name(shard)} is damaged at {offset}: {error}") from error
        values["label"] = label
        return {name: values[name] for name in self._wanted}

    def _values(self, data: bytes, crc: int) -> dict[str, Any]:
        """Take the records of a sample apart, which lie one after the other, and check them.

        Raises:
            BrokenRecordError: Not whole, or not this sample's.
        """
        values: dict[str, Any] = {}
        heads: list[Head] = []
        at = 0
        for column in self._columns:
            record = data
            if len(self._columns) > 1:
                record = data[at : at + read_head(data, at).record_bytes]
            head, lengths, body = read_record(record)
            if crc32(record, len(record) - len(body)) != head.image_crc:
                raise BrokenRecordError(f"the checksum of its {column} is wrong")
            values[column] = IndexedScan(head, lengths, body) if head.kind == INDEXED else bytes(body)
            heads.append(head)
            at += len(record)
        if at != len(data) or sample_crc(heads) != crc or any(head.kind not in (KEPT, INDEXED) for head in heads):
            raise BrokenRecordError("another record lies there")
        return values

    def label(self, index: int) -> int:
        """As `Source.label`."""
        return self._files.label(index)

    def name(self, index: int) -> str:
        """As `Source.name`: of the original file."""
        return self._files.name(index)

    def classes(self) -> list[str]:
        """As `Source.classes`."""
        return self._files.classes()


def columns_of(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns that shards hold of each sample, in their order, by what the index says of itself."""
    return ("image", *meta.get("columns", ()))


def info_of(container: Container) -> tuple[int, int, str, str]:
    """Samples, classes, digest of all the content, and digest of labels, names and class names alone."""
    meta: dict[str, Any] = container.meta
    return meta["n"], meta["num_classes"], meta["pack_digest"], meta["content_digest"]
