"""A job's log on disk: one file per (job, uid), and the one before it.

Written by one process at a time, which holds a lock on it; read by anybody at any time. A file that has grown is put
aside when nobody writes to it, once: so a job's log is bounded, and its last megabytes are there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prepserver.audit.records import VERSION, BrokenLine, Job, Progress, Record, from_line, parse, to_line

FOLDER = "audit"
"""In the state directory."""

MAX_FILE_BYTES = 4 << 20
"""No log grows past it: about 10,000 attachments, or every row of a bad dataset of 16,000 samples."""

ASIDE_BYTES = 1 << 20
"""A file larger than this is put aside before a new attachment, if nobody writes to it."""

MAX_JOBS = 256
"""Where there are more, the user who has most of them loses the one that was written to longest ago."""

_LOOKS = 5
_LOOK_AGAIN_S = 0.02


class LogError(OSError):
    """The log cannot be written, for a reason that is no error of the system's."""


class LogFile:
    """The log of a job, open for writing.

    Args:
        folder: Of all logs; made with mode 0700 if need be.
        job: The run's name.
        uid: Whose.

    Raises:
        OSError: It cannot be written.
    """

    def __init__(self, folder: Path, job: str, uid: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path_of(folder, job, uid)
        self._fd = self._open()
        try:
            size = os.fstat(self._fd).st_size
            if size > ASIDE_BYTES or (size and not self._is_of(job, uid)):
                os.replace(self.path, aside(self.path))
                os.close(self._fd)
                self._fd = self._open()
            data = os.pread(self._fd, MAX_FILE_BYTES + 1, 0)
            self._lines = data.count(b"\n")
            self._size = data.rfind(b"\n") + 1  # a line that was not written to its end is written over
            os.ftruncate(self._fd, self._size)
            if self._size == 0:
                _tidy(folder, self.path, uid)
                self.append(Job(VERSION, job, uid))
        except BaseException:
            os.close(self._fd)
            raise

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as e:
            os.close(fd)
            raise LogError("another daemon writes to it") from e
        return fd

    def _is_of(self, job: str, uid: int) -> bool:
        return _head(os.pread(self._fd, 4096, 0)) == Job(VERSION, job, uid)

    def append(self, record: Record) -> int:
        """Writes a line.

        Returns:
            Its number.

        Raises:
            OSError: It does not fit.
        """
        line = to_line(self._lines, record)
        if self._size + len(line) > MAX_FILE_BYTES:
            raise LogError(f"it has its {MAX_FILE_BYTES >> 20} MiB")
        self._write(line, self._size)
        self._size += len(line)
        self._lines += 1
        return self._lines - 1

    def slot(self, progress: Progress) -> tuple[int, int]:
        """Writes a line that `rewrite` can write again: returns its number and place."""
        place = self._size
        return self.append(progress), place

    def rewrite(self, slot: tuple[int, int], progress: Progress) -> None:
        """Writes the line of `slot` again.

        Raises:
            OSError: It cannot be.
        """
        number, place = slot
        self._write(to_line(number, progress), place)

    def _write(self, line: bytes, place: int) -> None:
        if os.pwrite(self._fd, line, place) < len(line):
            raise LogError("the disk is full")

    def close(self) -> None:
        """Gives the lock back."""
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Found:
    """The log of a job as it lies on disk.

    Attributes:
        paths: Its files, the oldest first.
        records: Of each file, with their line numbers.
        wrong: What is wrong with them.
    """

    paths: list[Path]
    records: list[list[tuple[int, Record]]]
    wrong: list[str]


def jobs(folder: Path) -> list[Job]:
    """The jobs that have a log, the one that was written to last first."""
    found = []
    for path in _newest_first(folder):
        with contextlib.suppress(OSError):
            head = _head(_read(path)[:4096])
            if head is not None:
                found.append(head)
    return found


def read(folder: Path, job: str, uid: int) -> Found:
    """The log of a job; one that is being written to is looked at again where a line is not whole.

    Raises:
        OSError: It cannot be read.
    """
    path = path_of(folder, job, uid)
    found = Found([], [], [])
    for each in (aside(path), path):
        if not each.exists():
            continue
        for look in range(_LOOKS):
            records, wrong = parse(_read(each))
            if not wrong:
                break
            if look < _LOOKS - 1:
                time.sleep(_LOOK_AGAIN_S)
        if records and (not isinstance(records[0][1], Job) or records[0][1].version != VERSION):
            wrong.append(f"it is no log of version {VERSION}")
        found.paths.append(each)
        found.records.append(records)
        found.wrong.extend(f"{each.name}: {what}" for what in wrong)
    return found


def path_of(folder: Path, job: str, uid: int) -> Path:
    """Where the log of a job is: readable as far as a file name can be, and unique."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", job)[:60].lstrip(".") or "_"
    return folder / f"{name}-{hashlib.sha256(f'{uid} {job}'.encode()).hexdigest()[:12]}.log"


def aside(path: Path) -> Path:
    """The file that was put aside before this one."""
    return path.with_suffix(".old")


def _head(data: bytes) -> Job | None:
    try:
        record = from_line(0, data.split(b"\n", 1)[0])
    except BrokenLine:
        return None
    return record if isinstance(record, Job) else None


def _read(path: Path) -> bytes:
    with path.open("rb") as f:
        return f.read(MAX_FILE_BYTES + 1)


def _tidy(folder: Path, new: Path, owner: int) -> None:
    uids = {path: owner if path == new else _uid_of(path) for path in _newest_first(folder)}
    while len(uids) > MAX_JOBS:
        held = Counter(uids.values())
        most = max(held, key=lambda uid: (held[uid], uid == owner))
        old = next(path for path in reversed(uids) if uids[path] == most)
        del uids[old]
        for path in (old, aside(old)):
            path.unlink(missing_ok=True)


def _uid_of(path: Path) -> int | None:
    """Whose log it is; None where that cannot be read."""
    try:
        with path.open("rb") as file:
            head = _head(file.read(4096))
    except OSError:
        return None
    return head.uid if head is not None else None


def _newest_first(folder: Path) -> list[Path]:
    return [path for _, path in sorted(_dated(folder), reverse=True)]


def _dated(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in folder.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):
            yield path.stat().st_mtime_ns, path
