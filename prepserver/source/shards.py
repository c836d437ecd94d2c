"""Large files that hold many samples each, read by (shard, offset, length).

Single samples are read, not mapped: if a shard is cut or a disk fails, a read is an error, but a mapping would kill the
process. The copy takes a fiftieth of a decode. Many small rows that need no decoding are copied from a mapping, several
times faster than by a call for each.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from collections.abc import Sequence

from prepserver.source.errors import SampleError
from prepserver.source.roots import OutsideRootsError, Roots, open_below
from prepserver.source.samples import NOT_THE_SAMPLE, OUTSIDE

# Of a soft limit of 1024 descriptors that a worker may live under; 400 shards of 256 MiB are 100 GB.
_OPEN_AT_MOST = 400


class Shards:
    """The shards of a dataset.

    Args:
        paths: Absolute paths.
        sizes: Bytes of each shard when the dataset was listed.
        roots: Where shards must lie.
        mtimes_ns: Time of each shard when the dataset was listed; None to compare sizes only.
    """

    def __init__(
        self, paths: Sequence[str], sizes: Sequence[int], roots: Roots | None, mtimes_ns: Sequence[int] | None = None
    ) -> None:
        self._paths, self._sizes, self._roots, self._mtimes_ns = paths, sizes, roots, mtimes_ns
        self._open: OrderedDict[int, int] = OrderedDict()
        self._maps: dict[int, mmap.mmap] = {}

    def read(self, shard: int, offset: int, length: int) -> bytes:
        """Read a range, which is shorter if the shard ends inside it.

        Raises:
            SampleError: The shard has changed, or cannot be read.
            OSError: The process has no descriptors or memory left.
        """
        try:
            return os.pread(self._descriptor(shard), length, offset)
        except SampleError:
            raise
        except OutsideRootsError:
            raise SampleError(OUTSIDE) from None
        except OSError as error:
            if error.errno in NOT_THE_SAMPLE:
                raise
            raise SampleError(f"cannot read {self.name(shard)}: {error.strerror}") from error

    def check(self, shard: int) -> None:
        """Raise as `read` if a shard has changed since it was listed; 2 us."""
        self.read(shard, 0, 0)  # opens it
        self._compare(shard, os.fstat(self._open[shard]))

    def mapped(self, shard: int) -> mmap.mmap:
        """Return a shard as memory, unchanged since it was listed. Raises as `read`.

        If the shard is cut while its pages are read, or its disk fails, the process dies. So whoever reads here must
        also be able to `read`.
        """
        self.check(shard)
        if shard not in self._maps:
            self._maps[shard] = mmap.mmap(self._open[shard], 0, prot=mmap.PROT_READ)
        return self._maps[shard]

    def name(self, shard: int) -> str:
        """Return the file name of a shard."""
        return os.path.basename(self._paths[shard])

    def _descriptor(self, shard: int) -> int:
        """Return an open shard; shards stay open, and are checked once."""
        descriptor = self._open.get(shard)
        if descriptor is not None:
            return descriptor
        if not shard < len(self._sizes):
            raise SampleError(f"the index names shard {shard} of {len(self._sizes)}")
        descriptor = open_below(self._roots, "the shard", self._paths[shard])
        try:
            self._compare(shard, os.fstat(descriptor))
        except SampleError:
            os.close(descriptor)
            raise
        if len(self._open) >= _OPEN_AT_MOST:
            os.close(self._open.popitem(last=False)[1])
        self._open[shard] = descriptor
        return descriptor

    def _compare(self, shard: int, status: os.stat_result) -> None:
        if status.st_size != self._sizes[shard]:
            raise SampleError(
                f"{self.name(shard)} has {status.st_size} bytes and should have {self._sizes[shard]}: it has changed"
            )
        if self._mtimes_ns is not None and status.st_mtime_ns != self._mtimes_ns[shard]:
            raise SampleError(f"{self.name(shard)} has changed since the dataset was listed; attach again")

    def __del__(self) -> None:
        # A source has no close of its own: it lives as long as its worker, or as the client's iterator.
        for descriptor in self.__dict__.get("_open", {}).values():
            os.close(descriptor)
