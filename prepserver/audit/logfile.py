"""A job's log on disk: one file per (job, uid), and its predecessor.

One process at a time writes it and holds a lock on it; any process may read it at any time. A new attachment renames
a file that has grown if no other process writes to it, so a job's log is bounded and keeps its last megabytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from prepserver.audit.records import VERSION, BrokenLine, Job, Progress, Record, from_line, parse, to_line
from prepserver.telemetry import history

FOLDER = "audit"  # in the state directory
MAX_FILE_BYTES = 4 << 20  # limit of a file: about 10,000 attachments, or 16,000 bad samples

ASIDE_BYTES = 1 << 20
"""A new attachment renames a larger file first (see `aside`), if no other process writes to it."""

MAX_JOBS = 256
"""With more logs than this, the user who has most of them loses the least recently written one, and again until a
sixteenth of the places is free: looking at all logs takes 10 ms, and should not happen for each new job."""

_LOOKS = 5
_LOOK_AGAIN_S = 0.02


class LogFile:
    """The log of a user's job, open for writing. Creates the folder of all logs, with mode 0700, if it is missing.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(self, folder: Path, job: str, uid: int) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path_of(folder, job, uid)
        self._fd = self._open()
        try:
            size = os.fstat(self._fd).st_size
            if size > ASIDE_BYTES or (size and _head(os.pread(self._fd, 4096, 0)) != Job(VERSION, job, uid)):
                os.replace(self.path, aside(self.path))
                older, self._fd = self._fd, self._open()
                os.close(older)
            data = os.pread(self._fd, MAX_FILE_BYTES + 1, 0)
            self._lines = data.count(b"\n")
            self._size = data.rfind(b"\n") + 1  # a line without an end is overwritten
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
            raise OSError("another daemon writes to it") from e
        return fd

    def append(self, record: Record) -> int:
        """Writes a line and returns its number; raises `OSError` if it does not fit."""
        line = to_line(self._lines, record)
        if self._size + len(line) > MAX_FILE_BYTES:
            raise OSError(f"it has reached {MAX_FILE_BYTES >> 20} MiB, the limit of a log")
        self._write(line, self._size)
        self._size += len(line)
        self._lines += 1
        return self._lines - 1

    def slot(self, progress: Progress) -> tuple[int, int]:
        """Writes a line that `rewrite` can replace; returns its number and its offset."""
        place = self._size
        return self.append(progress), place

    def rewrite(self, slot: tuple[int, int], progress: Progress) -> None:
        """Replaces the line of `slot`; raises `OSError` if that fails."""
        number, place = slot
        self._write(to_line(number, progress), place)

    def _write(self, line: bytes, place: int) -> None:
        if os.pwrite(self._fd, line, place) < len(line):
            raise OSError("the disk is full")

    def close(self) -> None:
        """Releases the lock."""
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Found:
    """A job's log on disk."""

    paths: list[Path]  # its files, oldest first
    records: list[list[tuple[int, Record]]]  # the records of each file, with their line numbers
    wrong: list[str]  # damage, one sentence each


def jobs(folder: Path) -> list[Job]:
    """The jobs that have a log, the most recently written one first."""
    return [head for head in map(_job_of, _newest_first(folder)) if head is not None]


def read(folder: Path, job: str, uid: int) -> Found:
    """The log of a job; reads it again a few times if a line is damaged, because it may be half written."""
    path = path_of(folder, job, uid)
    found = Found([], [], [])
    for each in (aside(path), path):
        if not each.exists():
            continue
        for look in range(_LOOKS):
            records, wrong = parse(each.read_bytes())
            if not wrong:
                break
            if look < _LOOKS - 1:
                time.sleep(_LOOK_AGAIN_S)
        if records and (not isinstance(records[0][1], Job) or records[0][1].version != VERSION):
            wrong.append(f"this is not a log of version {VERSION}")
        found.paths.append(each)
        found.records.append(records)
        found.wrong.extend(f"{each.name}: {what}" for what in wrong)
    return found


def opened(folder: Path, job: str, uid: int) -> list[tuple[str, int]]:
    """The names of all files about a job, and a descriptor of each that can only be read, which the caller closes.

    Raises:
        OSError: One is there and cannot be opened.
    """
    path = path_of(folder, job, uid)
    found: list[tuple[str, int]] = []
    with contextlib.ExitStack() as undo:
        for each in (aside(path), path, *history.paths(path)):
            with contextlib.suppress(FileNotFoundError):
                found.append((each.name, os.open(each, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)))
                undo.callback(os.close, found[-1][1])
        undo.pop_all()
    return found


def path_of(folder: Path, job: str, uid: int) -> Path:
    """Path of a job's log: its name is unique and resembles the job's."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", job)[:60].lstrip(".") or "_"
    what = f"{uid} {job}".encode(
        errors="surrogateescape"
    )  # not os.fsencode: daemon and command may have different locales
    return folder / f"{name}-{hashlib.sha256(what).hexdigest()[:12]}.log"


def aside(path: Path) -> Path:
    """The older file of the same job: where `path` is moved when it has grown."""
    return path.with_suffix(".old")


def _head(data: bytes) -> Job | None:
    try:
        record = from_line(0, data.split(b"\n", 1)[0])
    except BrokenLine:
        return None
    return record if isinstance(record, Job) else None


def _tidy(folder: Path, new: Path, owner: int) -> None:
    if sum(name.endswith(".log") for name in os.listdir(folder)) <= MAX_JOBS:
        return
    heads = {path: _job_of(path) for path in _newest_first(folder) if path != new}
    uids = {path: head.uid if head else None for path, head in heads.items()}
    while len(uids) >= MAX_JOBS - MAX_JOBS // 16:
        held = Counter(reversed(uids.values()))  # of equal users, the one whose last log is oldest comes first
        most = max(held, key=lambda uid: (held[uid] + (uid == owner), uid == owner))
        old = next(path for path in reversed(uids) if uids[path] == most)
        del uids[old]
        for path in (old, aside(old), *history.paths(old)):
            path.unlink(missing_ok=True)


def _job_of(path: Path) -> Job | None:
    """The job of a log; None if its first line cannot be read."""
    try:
        with path.open("rb") as file:
            return _head(file.read(4096))
    except OSError:
        return None


def _newest_first(folder: Path) -> list[Path]:
    dated = []
    for path in folder.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):
            dated.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(dated, reverse=True)]
