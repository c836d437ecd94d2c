"""The growing shards of a dataset that is being packed.

Records are appended to one unfinished file, in the order of the source; at its full size it is synced and renamed,
so a finished name means a whole shard. After a kill the finished shards are read by their heads, and the unfinished
one is cut behind its last record that is whole to the bit: nothing that was written is lost but a torn record.
Record k is sample k of the source, skipped ones included, so what is there says where to go on.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from prepserver.pack.errors import PackError
from prepserver.protocol.packed import HEAD_BYTES, SKIPPED, BrokenRecordError, Head, is_whole, read_head
from prepserver.source.packed import SHARD_PATTERN, shard_name

UNFINISHED = "unfinished.shard"
_REPORT_RECORDS = 4096


class Table:
    """Where the records are.

    Attributes:
        samples: Number in the source of each sample that is served.
        shards: Shard of each.
        offsets: Offset in the shard of each record in bytes.
        lengths: Bytes of each record.
        crcs: CRC-32 of each image.
        kinds: Records of each kind.
        image_bytes: Of all images together.
        done: Samples of the source that have a record.
    """

    def __init__(self) -> None:
        self.samples = array("Q")
        self.shards = array("I")
        self.offsets = array("Q")
        self.lengths = array("I")
        self.crcs = array("I")
        self.kinds: Counter[int] = Counter()
        self.image_bytes = 0
        self.done = 0

    def add(self, head: Head, shard: int, offset: int) -> None:
        """Note the next record."""
        self.kinds[head.kind] += 1
        self.done += 1
        if head.kind == SKIPPED:
            return
        self.samples.append(head.sample)
        self.shards.append(shard)
        self.offsets.append(offset)
        self.lengths.append(head.record_bytes)
        self.crcs.append(head.image_crc)
        self.image_bytes += head.image_bytes


class ShardWriter:
    """Appends records.

    Args:
        folder: Of the dataset.
        shard_bytes: A shard is finished when the next record would make it larger than this.
        recovered: Called with the number of records found while an earlier run's shards are read.

    Attributes:
        table: All records, those of earlier runs included.
        sizes: Bytes of each finished shard.

    Raises:
        PackError: A finished shard is damaged.
        OSError: The disk.
    """

    def __init__(self, folder: Path, shard_bytes: int, recovered: Callable[[int], None]) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._recovered = recovered
        self.table = Table()
        self.sizes: list[int] = []
        while (path := folder / shard_name(len(self.sizes))).exists():
            self._read_finished(path)
        if len(list(folder.glob(SHARD_PATTERN))) > len(self.sizes):
            raise PackError(f"{folder} lacks {shard_name(len(self.sizes))}; delete the folder and pack again")
        self._file = os.open(folder / UNFINISHED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._end = self._read_unfinished()

    def append(self, record: bytes) -> None:
        """Write the next record.

        Raises:
            OSError: No room; what was written before is safe.
        """
        if self._end and self._end + len(record) > self._shard_bytes:
            self._finish()
        view, at = memoryview(record), self._end
        while view:
            written = os.pwrite(self._file, view, at)
            view, at = view[written:], at + written
        self.table.add(read_head(record), len(self.sizes), self._end)
        self._end = at

    def finish(self) -> None:
        """Finish the last shard; nothing can be appended afterwards.

        Raises:
            OSError: The disk.
        """
        if self._end:
            self._finish()
        self.close()
        (self._folder / UNFINISHED).unlink()

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
            end = 0
            for head, offset in self._heads(file.fileno()):
                self.table.add(head, len(self.sizes), offset)
                end = offset + head.record_bytes
        if end != size:
            raise PackError(
                f"the shard {path} of an earlier run is damaged at {end} of {size} bytes; delete it and the shards "
                "after it, and run the same command again"
            )
        self.sizes.append(size)

    def _read_unfinished(self) -> int:
        end = 0
        for head, offset in self._heads(self._file):
            if not is_whole(os.pread(self._file, head.record_bytes, offset)):
                break
            self.table.add(head, len(self.sizes), offset)
            end = offset + head.record_bytes
        os.ftruncate(self._file, end)
        return end

    def _heads(self, descriptor: int) -> Iterator[tuple[Head, int]]:
        """Heads of consecutive samples and their offsets, until something else comes."""
        offset, size = 0, os.fstat(descriptor).st_size
        while True:
            try:
                head = read_head(os.pread(descriptor, HEAD_BYTES, offset))
            except BrokenRecordError:
                return
            if head.sample != self.table.done or offset + head.record_bytes > size:
                return
            yield head, offset
            offset += head.record_bytes
            if self.table.done % _REPORT_RECORDS == 0:
                self._recovered(self.table.done)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
