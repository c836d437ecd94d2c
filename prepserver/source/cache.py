"""The folder of index files: finds, publishes and tidies them.

A file is named after its spec and its content, ``<key>-<digest>.idx``, and never changes. So a restarted worker can
still open a stream that began on an earlier state of a dataset, after the dataset has changed and was indexed again;
and two processes that build the same index at once write the same file twice.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prepserver.source.container import UNFINISHED, BrokenContainerError, Container, write_container, write_whole
from prepserver.source.errors import SourceError

# Indexes of one spec that are kept, for streams that began on an earlier state of its dataset.
_STATES_KEPT = 8
# Writing the largest index takes seconds: an unfinished file older than this belongs to a process that was killed.
_UNFINISHED_AGE_NS = 3600 * 10**9


def damaged(error: Exception) -> BrokenContainerError | None:
    """Return the error of the damaged index if that is the reason why a source could not be opened or read."""
    cause = error.__cause__ if isinstance(error, SourceError) else error
    return cause if isinstance(cause, BrokenContainerError) else None


def discard(error: Exception, folder: Path) -> Path | None:
    """Remove an index that turned out to be damaged; return its path, or None if it does not belong to this cache."""
    broken = damaged(error)
    if broken is None or broken.path.parent != folder:
        return None
    if broken.is_there:
        with contextlib.suppress(OSError):  # its disk may be read-only by now
            broken.path.unlink()
    return broken.path


class ListingCache:
    """A folder of index files of mode 0700; raises `SourceError` if it cannot be made, or others may write into it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = folder.stat()
        except OSError as error:
            raise SourceError(
                f"cannot make the index cache {folder}: {error.strerror}; choose another folder (the daemon's "
                "--cache-dir, else $XDG_CACHE_HOME)"
            ) from error
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise SourceError(
                f"the index cache {folder} can be written by others than uid {os.geteuid()}; "
                "choose another folder, or chown it and chmod 700"
            )

    def clock_ns(self) -> int:
        """Return the time by the clock that stamps files; the kernel's coarse clock differs from Python's by a tick."""
        os.utime(self.folder)
        return self.folder.stat().st_mtime_ns

    def check(self) -> None:
        """Read all files whole, and remove damaged ones."""
        for path in self._newest_first("*.idx"):
            try:
                Container(path).check()
            except BrokenContainerError as error:
                discard(error, self.folder)

    def candidates(self, key: str) -> Iterator[Container]:
        """Yield the index files of a key whose headers are good, the newest first, and remove broken ones."""
        for path in self._newest_first(f"{key}-*.idx"):
            try:
                yield Container(path)
            except BrokenContainerError as error:
                discard(error, self.folder)
            except OSError:
                continue  # another process removed it, or the disk fails: listing again gives a new index

    def publish(self, key: str, digest: str, meta: Mapping[str, Any], sections: Mapping[str, memoryview]) -> Container:
        """Write an index file, and open it.

        This key's states beyond the newest eight are removed, and files of killed processes.

        Raises:
            SourceError: It cannot be written.
        """
        path = self._path(key, digest)
        self._write(key, lambda: write_container(path, meta, sections))
        return Container(path)

    def copied(self, key: str, digest: str, content: Callable[[], Any]) -> str:
        """Keep a copy of an index that lies elsewhere, and return its path. A broken copy is replaced.

        Raises:
            SourceError: It cannot be written.
            OSError: What `content` raises.
        """
        path = self._path(key, digest)
        with contextlib.suppress(FileNotFoundError, BrokenContainerError):
            Container(path)
            return str(path)
        data = content()
        self._write(key, lambda: write_whole(path, [data]))
        return str(path)

    def _path(self, key: str, digest: str) -> Path:
        return self.folder / f"{key}-{digest[:32]}.idx"

    def _write(self, key: str, write: Callable[[], None]) -> None:
        """Write an index of a key, and tidy the folder."""
        try:
            write()
        except OSError as error:
            raise SourceError(
                f"cannot write the index into {self.folder}: {error.strerror}; make room or choose another folder "
                "(the daemon's --cache-dir, else $XDG_CACHE_HOME)"
            ) from error
        for old in self._newest_first(f"{key}-*.idx")[_STATES_KEPT:]:
            old.unlink(missing_ok=True)
        now_ns = self.clock_ns()
        for unfinished in self._newest_first(f"{UNFINISHED}*"):
            with contextlib.suppress(FileNotFoundError):
                if now_ns - unfinished.stat().st_mtime_ns > _UNFINISHED_AGE_NS:
                    unfinished.unlink()

    def _newest_first(self, pattern: str) -> list[Path]:
        found: list[tuple[int, Path]] = []
        for path in self.folder.glob(pattern):
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(found, reverse=True)]
