"""Files of this machine that are read whole: those of a slow file system are opened before they are needed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from prepserver.source.roots import Roots
from prepserver.source.samples import read_regular_file
from prepserver.source.storage.ahead import EarlyFiles, Pace


class LocalFiles:
    """The files of a dataset; one owner thread."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._pace, self._early = Pace(), EarlyFiles(roots)

    @property
    def is_slow(self) -> bool:
        """Whether reading them takes so long that `open` should be called."""
        return self._pace.is_slow

    def open(self, paths: Iterable[bytes]) -> None:
        """Begin to open the first of the files that `read` will be asked for soon; do not wait.

        Raises:
            OSError: No thread can be started.
        """
        self._early.open(paths)

    def read(self, path: bytes) -> bytes:
        """Return the content of a file; raises as `read_regular_file`."""
        begun_ns = time.monotonic_ns()
        opened = self._early.take(path) if self._pace.is_slow else None
        data = read_regular_file(path, roots=self._roots, opened=opened)
        if self._pace.note(len(data), time.monotonic_ns() - begun_ns):
            self._early.close()
        return data

    def status(self, path: bytes) -> os.stat_result:
        """Return the status of what `read` will read; raises `OSError`."""
        return self._early.status(path)
