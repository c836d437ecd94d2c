"""Reading a packed dataset: a few large shards of records, and an index of all of them.

The index is one mapped file in the dataset's own folder, named after its content; it holds labels and the names
of the original files as the index of a folder does, and where each record is. A sample is one read of one range.
Shards are read, not mapped: a shard that is cut short, or a disk that fails, is then an error that can be told,
where a mapping would kill the process; and the copy takes a fiftieth of the decode.

Nothing in a shard is trusted: see `prepserver.protocol.packed`. Written by `prepserver.pack`.
"""

from __future__ import annotations

import os
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prepserver.protocol.packed import INDEXED, KEPT, BrokenRecordError, IndexedScan, read_record
from prepserver.source.container import BrokenContainerError, Container
from prepserver.source.errors import SampleError, SourceError, unusable
from prepserver.source.files import FileSource
from prepserver.source.roots import Roots
from prepserver.source.samples import NOT_THE_SAMPLE, Sample

INDEX_KEY = "packed dataset 1"
"""Marks an index of this version; raise the number when sections or records change."""

INDEX_PATTERN = "index-*.packed"
PLAN_NAME = "pack.json"
SHARD_PATTERN = "shard-*.packed"

# Of a soft limit of 1024 descriptors that a worker may live under; 400 shards of 256 MiB are 100 GB.
_OPEN_SHARDS = 400


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
    """Map the index of a packed dataset; O(1).

    Raises:
        SourceError: Gone, outside the roots, damaged, or of another version.
    """

    def admit(descriptor: int) -> None:
        if roots is not None:
            roots.check_open(descriptor, "the packed dataset's index", str(path))

    try:
        container = Container(path, admit)
    except OSError as error:
        raise unusable("the packed dataset's index", str(path), error) from error
    except BrokenContainerError as error:
        raise SourceError(f"the index of the packed dataset is damaged: {error}; pack it again") from error
    if container.meta.get("key") != INDEX_KEY:
        raise SourceError(f"{path} is no index of a packed dataset of this version; pack it again")
    return container


def check_dataset(root: Path, container: Container) -> None:
    """Check an index to its last byte, and that its shards are there and have their sizes.

    Once when a dataset is attached: 0.3 ms for each megabyte of index.

    Raises:
        SourceError: Something is damaged or missing.
    """
    sections = {name: container.section(name) for name in SECTIONS}
    if container.meta["crc"] != sections_crc(sections):
        raise SourceError(f"the index of the packed dataset {root} is damaged (wrong checksum); pack it again")
    for number, size in enumerate(container.meta["shards"]):
        path = root / shard_name(number)
        try:
            found = path.stat().st_size
        except OSError as error:
            raise unusable("the shard", str(path), error) from error
        if found != size:
            raise SourceError(f"the shard {path} has {found} bytes and should have {size}; copy or pack it again")


SECTIONS = (
    "labels", "folders", "name_ends", "names", "folder_ends", "folder_names", "shards", "offsets", "lengths", "crcs",
)  # fmt: skip
"""Of the index: those of `FileTable`, then shard number (uint32), offset in it (uint64), length of the record
(uint32) and CRC-32 of the image (uint32) of each sample."""


def sections_crc(sections: Mapping[str, memoryview]) -> int:
    """CRC-32 of all sections in the order of `SECTIONS`."""
    crc = 0
    for name in SECTIONS:
        crc = zlib.crc32(sections[name], crc)
    return crc


class PackedSource:
    """A `Source` over a packed dataset."""

    def __init__(self, container: Container, root: str, roots: Roots | None = None) -> None:
        """Take views of the sections; O(1) but for the names of the classes and the sizes of the shards.

        Args:
            container: From `open_index`.
            root: Absolute path of the dataset.
            roots: Where shards must lie.
        """
        self._roots = roots
        self._root = root
        # Labels and names are kept as those of files are; only their bytes lie elsewhere.
        self._files = FileSource(container, root)
        self._sizes: list[int] = container.meta["shards"]
        self._shards = container.section("shards").cast("I")
        self._offsets = container.section("offsets").cast("Q")
        self._lengths = container.section("lengths").cast("I")
        self._crcs = container.section("crcs").cast("I")
        self._open: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def read(self, index: int) -> Sample:
        """As `Source.read`; the data of an indexed sample is an `IndexedScan`."""
        label = self._files.label(index)
        shard, offset, length = self._shards[index], self._offsets[index], self._lengths[index]
        try:
            record = os.pread(self._descriptor(shard), length, offset)
        except SampleError:
            raise
        except OSError as error:
            if error.errno in NOT_THE_SAMPLE:
                raise
            raise SampleError(f"cannot read {shard_name(shard)}: {error.strerror}") from error
        try:
            if len(record) != length:
                raise BrokenRecordError(f"only {len(record)} of {length} bytes are there")
            head, lengths, image = read_record(record)
            if head.image_crc != self._crcs[index] or head.kind not in (KEPT, INDEXED):
                raise BrokenRecordError("another record lies there")
        except BrokenRecordError as error:
            raise SampleError(f"{shard_name(shard)} is damaged at {offset}: {error}") from error
        return Sample(IndexedScan(head, lengths, image) if head.kind == INDEXED else bytes(image), label)

    def label(self, index: int) -> int:
        """As `Source.label`."""
        return self._files.label(index)

    def name(self, index: int) -> str:
        """As `Source.name`: of the original file."""
        return self._files.name(index)

    def classes(self) -> list[str]:
        """As `Source.classes`."""
        return self._files.classes()

    def _descriptor(self, shard: int) -> int:
        """An open shard; they are kept open, and checked once."""
        descriptor = self._open.get(shard)
        if descriptor is not None:
            return descriptor
        if not shard < len(self._sizes):
            raise SampleError(f"the index names shard {shard} of {len(self._sizes)}")
        descriptor = os.open(f"{self._root}/{shard_name(shard)}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if self._roots is not None:
                self._roots.check_sample(descriptor)
        except SampleError:
            os.close(descriptor)
            raise
        size = os.fstat(descriptor).st_size
        if size != self._sizes[shard]:
            os.close(descriptor)
            raise SampleError(f"{shard_name(shard)} has {size} bytes and should have {self._sizes[shard]}")
        if len(self._open) >= _OPEN_SHARDS:
            os.close(self._open.popitem(last=False)[1])
        self._open[shard] = descriptor
        return descriptor

    def __del__(self) -> None:
        # A source has no close of its own: it lives as long as its worker, or as the client's iterator.
        for descriptor in self.__dict__.get("_open", {}).values():
            os.close(descriptor)


def info_of(container: Container) -> tuple[int, int, str, str]:
    """Samples, classes, digest of all the content, and digest of labels, names and class names alone."""
    meta: dict[str, Any] = container.meta
    return meta["n"], meta["num_classes"], meta["pack_digest"], meta["content_digest"]
