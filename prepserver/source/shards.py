"""Large files that hold many samples each, read by (shard, offset, length).

Single samples are read, not mapped: if a shard is cut or a disk fails, a read is an error, but a mapping would kill the
process. The copy takes a fiftieth of the time of a decode. Many small rows that need no decoding are copied from a
mapping, which is several times faster than a call for each.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from prepserver.pipeline.urls import is_url
from prepserver.source.errors import SampleError
from prepserver.source.local import Pace, ask_for
from prepserver.source.roots import OutsideRootsError, Roots, open_below
from prepserver.source.samples import MAX_ENCODED_BYTES, NOT_THE_SAMPLE, OUTSIDE
from prepserver.source.storage import remote

# Of all datasets in a process: its soft limit may be 1024 descriptors. 400 shards of 256 MiB are 100 GB.
_OPEN_AT_MOST = 400

_RUN_BYTES = 1 << 20
_GAP_BYTES = 4096
"""Ranges of an object with gaps of up to `_GAP_BYTES` are read by one request of at most `_RUN_BYTES`."""

_RUNS_KEPT = 4096
"""Ranges that are remembered from `want` to `read`; the oldest may be of chunks that another worker got."""


class Shards:
    """The shards of a dataset, with the size and the `File.version` of each when it was listed.

    Without `versions`, only sizes are compared. Attribute `wants`: whether reads may have to be waited for, and should
    begin early.
    """

    wants = False
    _open: ClassVar[OrderedDict[tuple[int, int], int]] = OrderedDict()  # descriptors by dataset and shard

    def __init__(
        self, paths: Sequence[str], sizes: Sequence[int], roots: Roots, versions: Sequence[int] | None = None
    ) -> None:
        self._paths, self._sizes, self._roots, self._versions = paths, sizes, roots, versions
        self._maps: dict[int, mmap.mmap] = {}
        self._pace = Pace()

    def read(self, shard: int, offset: int, length: int) -> bytes:
        """Read a range, which is shorter if the shard ends inside it.

        Raises:
            SampleError: The shard has changed, or cannot be read.
            OSError: The process has no descriptors or memory left.
        """
        begun_ns = time.monotonic_ns()
        try:
            descriptor = self._descriptor(shard)
            data = os.pread(descriptor, length, offset)
            if self._versions is not None or not length:  # after it: what was written before that shows in the time
                self._compare(shard, os.fstat(descriptor))
        except SampleError:
            raise
        except OutsideRootsError:
            raise SampleError(OUTSIDE) from None
        except OSError as error:
            if error.errno in NOT_THE_SAMPLE:
                raise
            raise SampleError(f"cannot read {self.name(shard)}: {error.strerror}") from error
        self._pace.note(len(data), time.monotonic_ns() - begun_ns)
        return data

    @property
    def is_slow(self) -> bool:
        """Whether `want` has an effect at present."""
        return self.wants or self._pace.is_slow

    def want(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """Begin reads (shard, offset, length) that `read` will be asked for soon; it never waits and raises nothing."""
        if self._pace.is_slow:
            for shard, offset, length in ranges:
                descriptor = self._open.get((id(self), shard))
                if length and descriptor is not None:
                    with contextlib.suppress(OSError):
                        ask_for(descriptor, offset, length)

    def has_arrived(self, shard: int, offset: int, length: int) -> bool:
        """Say whether `read` will not wait for a range."""
        return True

    def check(self, shard: int) -> None:
        """Raise as `read` if a shard has changed since it was listed; 2 us."""
        self.read(shard, 0, 0)

    def mapped(self, shard: int) -> mmap.mmap:
        """Return a shard as memory, unchanged since it was listed. Raises as `read`.

        If the shard is cut while its pages are read, or its disk fails, the process dies. So a caller must be able to
        use `read` instead.
        """
        self.check(shard)
        if shard not in self._maps:
            self._maps[shard] = mmap.mmap(self._open[id(self), shard], 0, prot=mmap.PROT_READ)
        return self._maps[shard]

    @property
    def stamp(self) -> int:
        """A number that changes when any shard has changed and was listed again."""
        return hash((tuple(self._sizes), tuple(self._versions or ())))

    def name(self, shard: int) -> str:
        """Return the file name of a shard."""
        return os.path.basename(self._paths[shard])

    def _descriptor(self, shard: int) -> int:
        """Return an open shard, which was compared with its listing when it was opened; shards stay open."""
        descriptor = self._open.get((id(self), shard))
        if descriptor is not None:
            return descriptor
        if not shard < len(self._sizes):
            raise SampleError(f"the index names shard {shard} of {len(self._sizes)}")
        descriptor = open_below(self._roots, "the shard", self._paths[shard])
        try:
            self._compare(shard, os.fstat(descriptor))
        except OSError:
            os.close(descriptor)
            raise
        if len(self._open) >= _OPEN_AT_MOST:
            os.close(self._open.popitem(last=False)[1])
        self._open[id(self), shard] = descriptor
        return descriptor

    def _compare(self, shard: int, status: os.stat_result) -> None:
        if status.st_size != self._sizes[shard]:
            raise SampleError(
                f"{self.name(shard)} has {status.st_size} bytes and should have {self._sizes[shard]}: it has changed"
            )
        if self._versions is not None and status.st_mtime_ns != self._versions[shard]:
            raise SampleError(f"{self.name(shard)} has changed since the dataset was listed")

    def __del__(self) -> None:
        # Sources have no `close`: one lives as long as its worker, or as the client's iterator.
        for key in [key for key in self._open if key[0] == id(self)]:
            os.close(self._open.pop(key))


class RemoteShards(Shards):
    """Shards that are objects on the network; each answer says whether its shard has changed."""

    wants = True

    def __init__(self, *listed: Any) -> None:
        super().__init__(*listed)
        # which request a range is a part of
        self._runs: OrderedDict[remote.RemoteRead, remote.RemoteRead] = OrderedDict()

    def read(self, shard: int, offset: int, length: int) -> bytes:
        wanted = self._wanted(shard, offset, length)
        run = self._run(wanted)
        try:
            data = remote.link().read(run, MAX_ENCODED_BYTES) if wanted.length else b""
        except OutsideRootsError:
            raise SampleError(OUTSIDE) from None
        except SampleError as error:
            raise remote.RemoteError(f"{self.name(shard)}: {error.reason}") from None
        return data if run is wanted else data[wanted.offset - run.offset :][: wanted.length]

    def want(self, ranges: Iterable[tuple[int, int, int]]) -> None:
        """As `Shards.want`; ranges that lie side by side are one request."""
        for run, parts in _runs([each for each in itertools.starmap(self._wanted, ranges) if each.length]):
            remote.link().want(itertools.repeat(run, len(parts)))
            self._runs |= dict.fromkeys(parts, run)
        while len(self._runs) > _RUNS_KEPT:
            self._runs.popitem(last=False)

    def has_arrived(self, shard: int, offset: int, length: int) -> bool:
        return remote.link().has_arrived(self._run(self._wanted(shard, offset, length)))

    def _run(self, wanted: remote.RemoteRead) -> remote.RemoteRead:
        """Return the request that has begun for a range, or that for it alone."""
        run = self._runs.get(wanted, wanted)
        return run if remote.link().has_begun(run) else wanted

    def check(self, shard: int) -> None:
        """Do nothing: each answer shows whether its shard has changed."""

    def name(self, shard: int) -> str:
        """Return the URL of a shard."""
        return self._paths[shard]

    def _wanted(self, shard: int, offset: int, length: int) -> remote.RemoteRead:
        if not shard < len(self._sizes):
            raise SampleError(f"the index names shard {shard} of {len(self._sizes)}")
        size = self._sizes[shard]
        length = max(0, min(length, size - offset))
        version = self._versions[shard] if self._versions else 0
        return remote.RemoteRead(self._paths[shard], offset, length, size, version)


def _runs(ranges: Sequence[remote.RemoteRead]) -> list[tuple[remote.RemoteRead, list[remote.RemoteRead]]]:
    """Return requests for ranges, each with its parts, in the order in which they are needed."""
    runs: list[tuple[int, remote.RemoteRead, list[remote.RemoteRead]]] = []
    for place, each in sorted(enumerate(ranges), key=lambda item: item[1]):
        if runs:
            first, run, parts = runs[-1]
            end = max(run.offset + run.length, each.offset + each.length)
            near = each.url == run.url and each.offset <= run.offset + run.length + _GAP_BYTES
            if near and end - run.offset <= _RUN_BYTES:
                runs[-1] = min(first, place), run._replace(length=end - run.offset), [*parts, each]
                continue
        runs.append((place, each, [each]))
    return [(run, parts) for _, run, parts in sorted(runs, key=lambda item: item[0])]


def open_shards(
    paths: Sequence[str], sizes: Sequence[int], roots: Roots, versions: Sequence[int] | None = None
) -> Shards:
    """Return the `Shards` for where they lie: on this machine, or all on the network."""
    return (RemoteShards if paths and is_url(paths[0]) else Shards)(paths, sizes, roots, versions)
