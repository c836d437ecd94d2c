"""The growing shards of a dataset that is being packed, and the index of all records, which completes it.

Records are appended to one unfinished file, in the order of the source. At its full size the file is synced and
renamed, so a finished name means a whole shard. After a kill, the next run reads the finished shards by their heads and
cuts the unfinished one after its last whole record: only a torn record is lost. Every sample of the source has a
record, even a skipped one, so the records say where to go on.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prepserver.pack import PackError
from prepserver.protocol.packed import HEAD_BYTES, SKIPPED, BrokenRecordError, Head, is_whole, read_head, sample_crc
from prepserver.source import Source
from prepserver.source.container import write_container
from prepserver.source.files import FileTable
from prepserver.source.readers.packed import INDEX_KEY, SHARD_PATTERN, index_name, shard_name

UNFINISHED = "unfinished.shard"


class Table:
    """Where the records are."""

    def __init__(self) -> None:
        # Of each sample that is served: its number in the source, its shard, the offset there of its first record, the
        # bytes of its records, and its `sample_crc`.
        self.samples = array("Q")
        self.shards = array("I")
        self.offsets = array("Q")
        self.lengths = array("I")
        self.crcs = array("I")
        self.kinds: Counter[int] = Counter()  # samples by the kind of their image's record
        self.image_bytes = 0
        self.done = 0  # samples of the source that have a record

    def add(self, heads: list[Head], shard: int, offset: int) -> None:
        """Note the records of the next sample."""
        head = heads[0]
        self.kinds[head.kind] += 1
        self.done += 1
        if head.kind == SKIPPED:
            return
        self.samples.append(head.sample)
        self.shards.append(shard)
        self.offsets.append(offset)
        self.lengths.append(sum(head.record_bytes for head in heads))
        self.crcs.append(sample_crc(heads))
        self.image_bytes += head.image_bytes


class ShardWriter:
    """Appends records; a sample has one for each column.

    A shard is finished when the next sample would make it larger than `shard_bytes`. `table` has all records, including
    those of earlier runs; `sizes` has the bytes of each finished shard.

    Raises:
        PackError: A finished shard is damaged.
        OSError: The disk failed.
    """

    def __init__(self, folder: Path, shard_bytes: int, columns: int = 1) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._columns = columns
        self.table = Table()
        self.sizes: list[int] = []
        while (path := folder / shard_name(len(self.sizes))).exists():
            self._read_finished(path)
        if len(list(folder.glob(SHARD_PATTERN))) > len(self.sizes):
            raise PackError(f"{folder} lacks {shard_name(len(self.sizes))}; delete the folder and pack again")
        self._file = os.open(folder / UNFINISHED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._end = self._read(self._file, os.fstat(self._file).st_size, is_finished=False)
        os.ftruncate(self._file, self._end)

    def append(self, records: bytes) -> None:
        """Write the records of the next sample; after an `OSError`, what was written before is safe."""
        if self._end and self._end + len(records) > self._shard_bytes:
            self._finish()
        view, at = memoryview(records), self._end
        while view:
            written = os.pwrite(self._file, view, at)
            view, at = view[written:], at + written
        heads = self._heads(lambda offset: records[offset : offset + HEAD_BYTES], 0, len(records))
        assert heads is not None
        self.table.add(heads, len(self.sizes), self._end)
        self._end = at

    def finish(self) -> None:
        """Finish the last shard; nothing can be appended afterwards."""
        if self._end:
            self._finish()
        self.close()
        (self._folder / UNFINISHED).unlink()

    def write_index(self, source: Source, held: Mapping[str, Any], notes: Mapping[str, Any]) -> Path:
        """Write the index of the finished shards and return its path.

        Labels and names come from the `source`. `held` (from `columns_meta`) describes the columns of the records, and
        `notes` how they were packed.
        """
        names, table = FileTable(), self.table
        for sample in table.samples:
            names.add(os.fsencode(source.name(sample)), source.label(sample))
        places = (table.shards, table.offsets, table.lengths, table.crcs)
        meta, sections = names.contents(source.classes(), more=places)
        digest = hashlib.sha256(meta["content_digest"].encode())
        for column in places:
            digest.update(column)
        pack_digest = digest.hexdigest()
        meta |= {"key": INDEX_KEY, "pack_digest": pack_digest, "shards": self.sizes, **held, "packed": notes}
        path = self._folder / index_name(pack_digest)
        write_container(path, meta, sections)
        # Containers have the private mode of files in a user's cache; a dataset gets that of its owner's umask.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(path, 0o666 & ~mask)
        return path

    def close(self) -> None:
        """Close the unfinished shard, which stays for the next run."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _finish(self) -> None:
        os.fsync(self._file)
        os.rename(self._folder / UNFINISHED, self._folder / shard_name(len(self.sizes)))
        _sync_folder(self._folder)
        self.sizes.append(self._end)
        os.close(self._file)
        self._file = -1
        self._file = os.open(self._folder / UNFINISHED, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._end = 0

    def _read_finished(self, path: Path) -> None:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            end = self._read(file.fileno(), size, is_finished=True)
        if end != size:
            raise PackError(
                f"the shard {path} of an earlier run is damaged at {end} of {size} bytes; delete it and the shards "
                "after it, and run the same command again"
            )
        self.sizes.append(size)

    def _read(self, descriptor: int, size: int, *, is_finished: bool) -> int:
        """Note the samples that a shard holds, and return the offset where they end.

        In a finished shard only heads are read; in the unfinished one each record must be whole.
        """
        end = 0
        while heads := self._heads(lambda offset: os.pread(descriptor, HEAD_BYTES, offset), end, size):
            at = end
            for head in heads:
                if not is_finished and not is_whole(os.pread(descriptor, head.record_bytes, at)):
                    return end
                at += head.record_bytes
            self.table.add(heads, len(self.sizes), end)
            end = at
        return end

    def _heads(self, read: Callable[[int], bytes], at: int, size: int) -> list[Head] | None:
        """Return the heads of the next sample's records; None if other bytes follow or a record is cut off.

        `read` returns the bytes of a head at an offset; the first is at `at`, and the bytes end at `size`.
        """
        heads: list[Head] = []
        while not heads or (heads[0].kind != SKIPPED and len(heads) < self._columns):
            try:
                head = read_head(read(at))
            except BrokenRecordError:
                return None
            at += head.record_bytes
            if head.sample != self.table.done or at > size:
                return None
            heads.append(head)
        return heads


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
