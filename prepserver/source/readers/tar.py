"""How `Tar` is read: shards are listed side by side, and the listing is kept while each has its time and size."""

from __future__ import annotations

import itertools
import os
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from prepserver.pipeline.kinds import Label
from prepserver.pipeline.sources.tar import Tar
from prepserver.source.container import Container
from prepserver.source.errors import SourceError
from prepserver.source.files import FileTable, table_meta
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.reader import Scan, ScanningReader
from prepserver.source.roots import Roots
from prepserver.source.samples import Source
from prepserver.source.tar import ListedShard, TarSource, expand, list_shard

_AT_ONCE = 8
"""Shards that are listed at a time: a listing waits for storage more than it computes."""

_LOOK_S = 0.1


class TarReader(ScanningReader):
    """Tar."""

    kind = Tar
    spec: Tar

    @property
    def _columns(self) -> list[str]:
        """What is read from shards; the label is in the index."""
        return [name for name, kind in self.spec.columns.items() if not isinstance(kind, Label)]

    def scan(self, progress: Progress, roots: Roots | None) -> Scan:
        """As `ScanningReader.scan`."""
        paths = expand(self.spec.shards)
        places, table = Places(), FileTable()
        more = [array("I"), *(array(code) for _ in self._columns for code in "QI")]
        shards = self._listed(paths, progress, roots)
        for number, (path, shard) in enumerate(zip(paths, shards, strict=True)):
            places.add_file(os.fsencode(path))
            folder = os.fsencode(path.lstrip("/")) + b"/"
            for key, label in zip(shard.keys, shard.labels, strict=True):
                below, slash, name = key.rpartition(b"/")
                table.add(folder + below + slash, name, label)
            more[0].extend(itertools.repeat(number, len(shard.keys)))
            for column, found in zip(more[1:], itertools.chain.from_iterable(shard.places), strict=True):
                column.extend(found)
        if not len(table):
            raise SourceError(
                f"{self.spec.shards} holds no samples: no file ends in .{self.spec.image.replace(';', ' or .')}"
            )
        progress.finished(len(table))
        meta: dict[str, Any] = table_meta(table, [], None)
        meta |= {
            "shards": paths,
            "sizes": [shard.size for shard in shards],
            "mtimes_ns": [shard.mtime_ns for shard in shards],
        }
        return Scan(meta, table.sections(*more), meta["mtimes_ns"], places.found())

    def _listed(self, paths: list[str], progress: Progress, roots: Roots | None) -> list[ListedShard]:
        samples = 0

        def found() -> None:
            nonlocal samples
            samples += 1  # for people: threads may lose one

        wanted = [str(getattr(self.spec, name)) for name in self._columns]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            futures = [threads.submit(list_shard, path, wanted, self.spec.label, roots, found) for path in paths]
            try:
                left = set(futures)
                while left:
                    done, left = wait(left, _LOOK_S)
                    for future in done:
                        future.result()
                    progress.found(samples)
            except BaseException:
                threads.shutdown(wait=True, cancel_futures=True)
                raise
        return [future.result() for future in futures]

    def is_current(self, container: Container) -> bool:
        """As `ScanningReader.is_current`."""
        meta = container.meta
        stats = map(os.stat, meta["shards"])
        return all(
            (status.st_size, status.st_mtime_ns) == was
            for status, was in zip(stats, zip(meta["sizes"], meta["mtimes_ns"], strict=True), strict=True)
        )

    def check_roots(self, sections: Callable[[str], memoryview], roots: Roots) -> None:
        """As `ScanningReader.check_roots`."""
        for path in expand(self.spec.shards):
            roots.check_path("the shard", path)

    def read_by(self, container: Container, roots: Roots | None) -> Source:
        """As `ScanningReader.read_by`."""
        return TarSource(container, self._columns, self.spec.label is not None, roots)
