"""How `Packed` is read: a few large shards of records, and an index of all of them.

The index is a file in the dataset's own folder, named after its content. It holds labels and the names of the original
files as the index of a folder does, and the place of each record. Reading a sample is one read of one range.

Nothing in a shard is trusted: see `prepserver.protocol.packed`. Checksums cover each bit of a record and are compared
before it is decoded: a damaged shard has bad samples, never wrong rows. `prepserver.pack` writes these datasets.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prepserver.checksum import crc32
from prepserver.pipeline.declared import columns_to_wire, declared_columns
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image, Label
from prepserver.pipeline.record import Columns, label_of
from prepserver.pipeline.sources.packed import Packed, is_index
from prepserver.pipeline.urls import is_url
from prepserver.protocol.packed import (
    INDEXED,
    KEPT,
    PIXELS,
    BrokenRecordError,
    Head,
    IndexedScan,
    StoredPixels,
    read_head,
    read_record,
    sample_crc,
)
from prepserver.source import storage
from prepserver.source.cache import ListingCache
from prepserver.source.container import AGAIN, BrokenContainerError, Container
from prepserver.source.errors import SampleError, SourceError, unusable
from prepserver.source.files import FileTableSource, rows_of
from prepserver.source.packed_values import from_bytes
from prepserver.source.places import Places
from prepserver.source.reader import Listing, Reader
from prepserver.source.roots import ANYWHERE, Roots
from prepserver.source.samples import Record, Source
from prepserver.source.shards import open_shards

INDEX_KEY = "packed dataset 2"  # marks an index of this version; raise the number when sections or records change

INDEX_PATTERN = "index-*.packed"
PLAN_NAME = "pack.json"
SHARD_PATTERN = "shard-*.packed"

_MORE = "IQII"  # the further numbers of each sample in its `FileTableSource`: see `PackedSource`

_AGAIN = "run the same prepserver pack again to rebuild it from the shards"


def shard_name(number: int) -> str:
    """Return the file name of a finished shard."""
    return f"shard-{number:05d}.packed"


def index_name(digest: str) -> str:
    """Return the file name of the index whose content has this digest: other content has another name."""
    return f"index-{digest[:32]}.packed"


def _shard_paths(root: str, count: int) -> list[str]:
    return [f"{root}/{shard_name(number)}" for number in range(count)]


def _find_index(root: str) -> str:
    """Return the path of the index of a packed dataset; raises `SourceError` unless there is exactly one."""
    try:
        names = storage.names(root)
    except OSError as error:
        raise unusable("the packed dataset", root, error) from error
    found = sorted(filter(is_index, names))
    if len(found) == 1:
        return f"{root}/{found[0]}"
    if found:
        raise SourceError(
            f"{root} holds {len(found)} indexes of packed datasets: remove all but one, or name one: {root}/{found[0]}"
        )
    if PLAN_NAME in names:
        raise SourceError(f"packing of {root} is not finished; run the same prepserver pack again to continue")
    raise SourceError(f"{root} holds no packed dataset; make one with prepserver pack SOURCE {root}")


def open_index(path: Path, roots: Roots = ANYWHERE, remedy: str = _AGAIN) -> Container:
    """Open the index of a packed dataset; raises `SourceError` if it is gone, outside, damaged, or outdated."""
    try:
        container = Container(path, roots, remedy)
        if container.meta.get("key") != INDEX_KEY:
            raise SourceError(f"{path} is not an index of a packed dataset of this version; {_AGAIN}")
        said, listed = container.meta.get("n"), len(rows_of(container, _MORE))
    except BrokenContainerError as error:
        raise SourceError(f"the index of the packed dataset is damaged: {error}") from error
    except OSError as error:
        raise unusable("the packed dataset's index", str(path), error) from error
    if said != listed:  # a stranger may have written it, checksums and all
        raise _wrong(path, f"it counts {said} samples and lists {listed}")
    return container


def _wrong(path: Path, why: str) -> SourceError:
    return SourceError(f"the index of the packed dataset is wrong: {path}: {why}; {_AGAIN}")


def _check_shards(root: str, sizes: Sequence[int], roots: Roots) -> None:
    """Check that the shards exist, lie below the roots, and have their sizes. Runs once, when a job attaches.

    Raises:
        SourceError: One is missing, lies outside the roots, or has another size.
    """
    paths = _shard_paths(root, len(sizes))
    if is_url(root):
        try:
            found = [size for size, _ in storage.statuses(paths)]
        except OSError as error:
            raise unusable("the shard", root, error) from error
    else:
        found = []
        for path in paths:
            with storage.open_file(roots, "the shard", path) as file:
                found.append(file.size)
    for path, size, should in zip(paths, found, sizes, strict=True):
        if size != should:
            raise SourceError(f"the shard {path} has {size} bytes and should have {should}; copy or pack it again")


def columns_meta(columns: Columns, stored: Sequence[str]) -> dict[str, Any]:
    """Return the metadata for `kinds_of`, all columns, and for `columns_of`, those that are `stored` in shards."""
    return {"first": stored[0], "columns": stored[1:], "kinds": columns_to_wire(columns)}


def columns_of(meta: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of each sample that are in shards, in their order, from the metadata of an index."""
    return (meta["first"], *meta["columns"])


def kinds_of(meta: Mapping[str, Any]) -> Columns:
    """Return the kinds of all columns, from the metadata of an index."""
    return declared_columns(meta["kinds"], has_class_names=True)


class PackedSource(FileTableSource):
    """A `Source` over a packed dataset; opened in O(1) but for the names of the classes and the sizes of the shards.

    As a `FileTableSource`, it has as further numbers of each sample the number of the shard (uint32), the offset in it
    (uint64), the length of its records (uint32) and their `sample_crc` (uint32). Names are those of the original files.
    """

    def __init__(self, container: Container, spec: Packed, roots: Roots) -> None:
        super().__init__(container, _MORE)
        kinds = kinds_of(container.meta)
        self._columns = [(name, isinstance(kinds.get(name), Image)) for name in columns_of(container.meta)]
        stored = columns_of(container.meta)
        self._label = next((name for name in kinds if name not in stored), "label")  # the only one in the index
        self._wanted = spec.columns
        sizes: list[int] = container.meta["shards"]
        self._shards = open_shards(_shard_paths(spec.folder, len(sizes)), sizes, roots)

    @property
    def reads_ahead(self) -> bool:
        return self._shards.is_slow

    def prefetch(self, indices: Sequence[int]) -> None:
        self._shards.want(self.entry(index)[2:5] for index in indices)  # type: ignore[misc]  # three of them

    def read(self, index: int) -> Record:
        label, _, shard, offset, length, crc = self.entry(index)
        data = self._shards.read(shard, offset, length)
        try:
            if len(data) != length:
                raise BrokenRecordError(f"only {len(data)} of its {length} bytes exist")
            values = self._values(data, crc)
        except BrokenRecordError as error:
            raise SampleError(f"{shard_name(shard)} is damaged at {offset}: {error}") from error
        values[self._label] = label
        return {name: values[name] for name in self._wanted}

    def stamp(self, index: int) -> int:
        return self.entry(index)[-1]

    def _values(self, data: bytes, crc: int) -> dict[str, Any]:
        """Separate and check the records of a sample, which follow each other; raise `BrokenRecordError`."""
        values: dict[str, Any] = {}
        heads: list[Head] = []
        at = 0
        for column, is_image in self._columns:
            record = data
            if len(self._columns) > 1:
                record = data[at : at + read_head(data, at).record_bytes]
            head, lengths, body = read_record(record)
            if crc32(record, len(record) - len(body)) != head.image_crc:
                raise BrokenRecordError(f"the checksum of its {column} is wrong")
            if is_image and head.kind == INDEXED:
                values[column] = IndexedScan(head, lengths, body)
            elif is_image and head.kind == PIXELS:
                values[column] = StoredPixels(head, body)
            elif head.kind != KEPT:
                raise BrokenRecordError(f"its record holds no {column}")
            elif column in self._wanted:
                values[column] = from_bytes(body, self._wanted[column])
            heads.append(head)
            at += len(record)
        if at != len(data) or sample_crc(heads) != crc:
            raise BrokenRecordError("another record lies there")
        return values


class PackedReader(Reader):
    spec: Packed
    source = PackedSource

    def index(self, cache_dir: Path, report: Callable[[int], None]) -> Listing:
        root, roots = self.spec.folder, self.roots
        path = _find_index(root) if root == self.spec.root else self.spec.root
        if is_url(root):
            path, roots = self._fetched(path, cache_dir), ANYWHERE
        container = open_index(Path(path), roots)
        try:
            return self._info(path, container.meta, roots)
        except (KeyError, TypeError, ValueError, SpecError) as error:
            raise _wrong(Path(path), f"{type(error).__name__}: {error}") from error

    def _info(self, path: str, meta: Mapping[str, Any], roots: Roots) -> Listing:
        root = self.spec.folder
        packed = dict(kinds_of(meta))
        packed.setdefault(label_of(packed), Label())  # of those without any, all are 0
        if differ := [name for name, kind in self.spec.columns.items() if packed.get(name) != kind]:
            known = ", ".join(f"{name}: {kind}" for name, kind in packed.items())
            what = f"{root} was packed without {', '.join(differ)}"
            if shared := [name for name in differ if name in packed]:
                what = f"{root} was packed with other kinds of {', '.join(shared)} than columns= names"
            elif differ == ["mask"]:
                what += ": pack its source again with --masks, or drop masks="
            raise SourceError(f"{what}. It has {known}")
        _check_shards(root, meta["shards"], roots)
        places = Places()
        places.add_folder(root)
        for each in (path, *_shard_paths(root, len(meta["shards"]))):
            if is_url(root) or os.path.islink(each):  # the index of a bucket is a copy on this machine
                places.add_file(each)
        # If the folder holds other encodings of the same samples later, they are another source.
        digest = hashlib.sha256(f"{self.spec.digest} {meta['pack_digest']}".encode()).hexdigest()
        where, classes = tuple(places.found()), tuple(meta["classes"])
        return Listing(Path(path), meta["n"], meta["num_classes"], digest, meta["content_digest"], where, classes)

    def _fetched(self, url: str, cache_dir: Path) -> str:
        """Return the path of a copy of a remote index, made at its first use; its name stands for its content."""
        name = url.rpartition("/")[2].removeprefix("index-").removesuffix(".packed")
        with storage.open_file(ANYWHERE, "the packed dataset's index", url) as file:
            return ListingCache(cache_dir).copied(self.key, name, file.whole)

    def open(self, index_path: Path) -> Source:
        # The index of a bucket is a copy in the cache.
        index = open_index(index_path, remedy=AGAIN) if is_url(self.spec.root) else open_index(index_path, self.roots)
        return self.read_by(index)
