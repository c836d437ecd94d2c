"""The folder of index files: finds, publishes and tidies them.

A file is named by its spec and its content, ``<key>-<digest>.idx``, and never changes. So a stream that began on one
state of a dataset can be opened again by a restarted worker after the dataset has changed and was indexed anew, and two
processes that build the same index at once only write the same file twice.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prepserver.source.container import TEMPORARY_PREFIX, BrokenContainerError, Container, write_container
from prepserver.source.errors import SourceError

# States of one dataset, kept for the streams that began on them.
_STATES_KEPT = 8
# Writing the largest index takes seconds: an unfinished file older than this belongs to a process that was killed.
_UNFINISHED_AGE_NS = 3600 * 10**9


class IndexCache:
    """A folder of index files that belongs to this user alone; created with mode 0700.

    Raises:
        SourceError: The folder cannot be made, or others may write into it.
    """

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

    def candidates(self, key: str) -> Iterator[tuple[Path, Container]]:
        """Yield the whole index files of a key, the newest first, and remove broken ones."""
        for path in self._newest_first(f"{key}-*.idx"):
            try:
                yield path, Container(path)
            except BrokenContainerError:
                path.unlink(missing_ok=True)
            except OSError:
                continue  # somebody else removed it, or the disk fails: a new index serves as well

    def publish(self, key: str, digest: str, meta: Mapping[str, Any], sections: Mapping[str, memoryview]) -> Path:
        """Write an index file; remove this key's states beyond the newest eight, and files of killed processes.

        Raises:
            SourceError: It cannot be written.
        """
        path = self.folder / f"{key}-{digest[:32]}.idx"
        try:
            write_container(path, meta, sections)
        except OSError as error:
            raise self._full(error) from error
        self._tidy(key)
        return path

    def copied(self, key: str, digest: str, size: int, content: Callable[[], Any]) -> str:
        """Keep a copy of an index that lies elsewhere; return its path.

        Args:
            key: The name of the spec.
            digest: The name of the content.
            size: Its bytes; a copy of another size is made again.
            content: Returns it.

        Raises:
            SourceError: It cannot be written.
            OSError: What `content` raises.
        """
        path = self.folder / f"{key}-{digest[:32]}.idx"
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size == size:
                return str(path)
        data = content()
        try:
            descriptor, temporary = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=self.folder)
            with open(descriptor, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        except OSError as error:
            raise self._full(error) from error
        self._tidy(key)
        return str(path)

    def _full(self, error: OSError) -> SourceError:
        return SourceError(
            f"cannot write the index into {self.folder}: {error.strerror}; make room or choose another folder"
        )

    def _tidy(self, key: str) -> None:
        for old in self._newest_first(f"{key}-*.idx")[_STATES_KEPT:]:
            old.unlink(missing_ok=True)
        now_ns = self.clock_ns()
        for unfinished in self._newest_first(f"{TEMPORARY_PREFIX}*"):
            with contextlib.suppress(FileNotFoundError):
                if now_ns - unfinished.stat().st_mtime_ns > _UNFINISHED_AGE_NS:
                    unfinished.unlink()

    def _newest_first(self, pattern: str) -> list[Path]:
        found: list[tuple[int, Path]] = []
        for path in self.folder.glob(pattern):
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(found, reverse=True)]
