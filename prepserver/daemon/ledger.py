"""Logs what each job is given (the daemon's side of the audit), and how its run goes, for reports.

The daemon's loop only queues numbers. A thread writes them, because a disk may be slow, full or gone, and no job should
wait for it. A write that fails ends the log of that job, with one warning.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from prepserver.audit import logfile
from prepserver.audit.logfile import LogFile, path_of
from prepserver.audit.records import MAX_BAD_ROWS, MAX_REASON_CHARS, Attached, Bad, Left, Progress, Rows
from prepserver.pipeline.batches import batch_rows
from prepserver.protocol.messages import Attach
from prepserver.protocol.work import Indexed
from prepserver.telemetry.history import HistoryFile, Slice

log = logging.getLogger(__name__)

MAX_BAD_OF_STAY = 4096
"""Most bad rows that are logged for one attachment."""

_MOST_QUEUED = 10_000  # the disk does not answer if more wait: further entries are dropped, to bound memory
_CLOSE_S = 2.0
_REST_S = 0.05
"""How long the thread sleeps after it has emptied the queue, if only progress is queued. Waking it for each batch would
take the GIL from the loop just as the loop announces that batch. What a killed daemon has not logged, the client
reports when it comes back."""


def utc_s() -> float:
    """Seconds since 1970."""
    return datetime.now(UTC).timestamp()


@dataclass(slots=True)
class _Stay:
    """One attachment. The thread sets `number`, `slot` and `track`, the loop the rest."""

    key: tuple[str, int]  # job and uid
    ranks: int  # its world_size
    first: int  # start of its first batch
    told: int  # rows below this position were announced to it
    back: int  # rows below this position it has released
    counted: int  # images below this position are in the report
    counted_s: float = field(default_factory=utc_s)  # end of the time that the report covers
    bad_left: int = MAX_BAD_OF_STAY  # bad rows that may still be logged
    queued: bool = False  # whether its progress is queued
    number: int | None = None  # line of its `Attached`
    slot: tuple[int, int] | None = None  # where its `Progress` is
    track: str | None = None  # its part of the report


@dataclass(slots=True)
class _Log:
    """A job's files."""

    file: LogFile | None = None  # its audit log; None after an error
    history: HistoryFile | None = None  # its report; None after an error
    stays: int = 0  # attachments that have not ended
    rows: dict[str, int] = field(default_factory=dict)  # what is read, as JSON -> number of its `Rows` line

    def close(self) -> None:
        if self.history is not None:
            history, self.history = self.history, None
            with contextlib.suppress(OSError):
                history.close()
        if self.file is not None:
            self.file.close()
            self.file = None


class Ledger:
    """The logs of all jobs, in a folder that the first job makes; `about` is for reports."""

    def __init__(self, folder: Path, about: Mapping[str, Any] | None = None) -> None:
        self._folder = folder
        self._about = dict(about or {})
        self._daemon = f"{os.getpid()}-{time.monotonic_ns()}"
        self._stays: dict[int, _Stay] = {}
        self._queue: queue.SimpleQueue[tuple[_Stay, Callable[[], None] | None] | None] = queue.SimpleQueue()
        self._is_full = False
        self._more_than_progress = threading.Event()
        self._logs: dict[tuple[str, int], _Log] = {}  # the thread's own
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def opened(self, job: str, uid: int) -> list[tuple[str, int]]:
        """As `prepserver.audit.logfile.opened`."""
        return logfile.opened(self._folder, job, uid)

    # -- the loop's side ----------------------------------------------------------------------------

    def attached(
        self, cursor: int, uid: int, attach: Attach, rows: Rows, epoch_start: int, position: int, first: int, ring: int,
        pid: int = 0,
    ) -> None:  # fmt: skip
        """A rank has attached: for the numbers see `Attached` and `Admit`. A `pid` of 0 means an unknown one."""
        stay = self._stays[cursor] = _Stay((attach.job, uid), attach.world_size, first, first, first, first)
        attached = Attached(
            0, self._daemon, _now(), attach.rank, attach.world_size, attach.batch_size, attach.drop_last, attach.epoch,
            epoch_start, position, attach.rounds, ring, attach.position is not None, attach.local_ranks,
            attach.batching,
        )  # fmt: skip
        self._put(stay, partial(self._begin, stay, rows, attached, pid))

    def announced(self, cursor: int, upto: int, bad: Sequence[tuple[int, int, str]]) -> None:
        """All rows below `upto` are announced to a rank, perhaps again; the `bad` ones hold a replacement."""
        stay = self._stays.get(cursor)
        if stay is None or upto <= stay.told:
            return
        new = [row for row in bad if row[0] >= stay.told]
        stay.told = upto
        self._touch(stay)
        kept = [(position, index, reason[:MAX_REASON_CHARS]) for position, index, reason in new[: stay.bad_left]]
        for k in range(0, len(kept), MAX_BAD_ROWS):
            self._put(stay, partial(self._write, stay, Bad(0, kept[k : k + MAX_BAD_ROWS])))
        if len(new) > stay.bad_left > 0:
            self._put(stay, partial(self._write, stay, Bad(0, [], more=True)))
        stay.bad_left = max(0, stay.bad_left - len(new))

    def released(self, cursor: int, upto: int) -> None:
        """A rank has released all rows below `upto`."""
        stay = self._stays.get(cursor)
        if stay is not None and upto > stay.back:
            stay.back = upto
            self._touch(stay)

    def counted(self, cursor: int, grown: Slice, verdict: dict[str, Any] | None = None) -> None:
        """What else a rank did in the last second or so, and the verdict on it if one was made."""
        if (stay := self._stays.get(cursor)) is not None:
            self._grew(stay, stay.back, grown, verdict)

    def _grew(self, stay: _Stay, upto: int, grown: Slice, verdict: dict[str, Any] | None = None) -> None:
        # If the disk does not answer, reports leave half of the queue to the audit.
        if self._queue.qsize() < _MOST_QUEUED // 2:
            grown.add({"images": (upto - stay.counted) / stay.ranks})
            stay.counted, stay.counted_s = upto, grown.at_s + grown.span_s
            self._put(stay, partial(self._count, stay, grown, verdict), wakes=False)

    def left(self, cursor: int, at: int | None = None) -> None:
        """A rank has left. If it reported `at`, its training loop took the batches that start below that position."""
        stay = self._stays.pop(cursor, None)
        if stay is not None:
            left = Left(0, _now(), at if at is not None and at >= stay.first else None)
            upto = stay.back if left.at is None else left.at
            if upto > stay.counted:  # after the last second that was counted
                self._grew(stay, upto, Slice(stay.counted_s, max(0.0, utc_s() - stay.counted_s)))
            self._put(stay, partial(self._end, stay, left))

    def close(self) -> None:
        """Writes what is queued, for at most `_CLOSE_S`."""
        for cursor in list(self._stays):
            self.left(cursor)
        self._queue.put(None)
        self._more_than_progress.set()
        self._thread.join(_CLOSE_S)

    def _touch(self, stay: _Stay) -> None:
        if not stay.queued:
            stay.queued = True  # ORDER: before the thread, which resets it, can take the entry
            if not self._put(stay, None, wakes=False):
                stay.queued = False

    def _put(self, stay: _Stay, write: Callable[[], None] | None, *, wakes: bool = True) -> bool:
        """Queues a task for the thread, None for progress only; returns False if it was dropped."""
        if self._queue.qsize() < _MOST_QUEUED:
            self._queue.put((stay, write))
            if wakes:
                self._more_than_progress.set()
            return True
        if not self._is_full:
            self._is_full = True
            log.warning("the audit logs in %s will have gaps: %d entries wait for the disk", self._folder, _MOST_QUEUED)
        return False

    # -- the thread's side --------------------------------------------------------------------------

    def _run(self) -> None:
        while (found := self._queue.get()) is not None:
            stay, write = found
            if write is None:
                stay.queued = False  # ORDER: before the numbers are read, so that a later change is queued again
            try:
                self._write(stay) if write is None else write()
            except OSError as e:
                self._fail(stay, e)
            except Exception:
                log.exception("the audit log of job %r ends here", stay.key[0])
                self._fail(stay, None)
            if self._queue.empty():
                self._more_than_progress.wait(_REST_S)
                self._more_than_progress.clear()
        for each in self._logs.values():
            each.close()

    def _write(self, stay: _Stay, note: Left | Bad | None = None) -> None:
        file = self._logs[stay.key].file if stay.key in self._logs else None
        if file is None or stay.number is None or stay.slot is None:
            return
        file.rewrite(stay.slot, Progress(stay.number, stay.told, stay.back))
        if note is not None:
            file.append(dataclasses.replace(note, of=stay.number))

    def _begin(self, stay: _Stay, rows: Rows, attached: Attached, pid: int) -> None:
        is_new = stay.key not in self._logs
        each = self._logs.setdefault(stay.key, _Log())
        each.stays += 1
        if is_new:
            each.file = LogFile(self._folder, *stay.key)
        if each.file is None:
            return
        reads = dataclasses.asdict(rows)
        what = json.dumps(reads, sort_keys=True)
        if what not in each.rows:
            each.rows[what] = each.file.append(rows)
        number = each.file.append(dataclasses.replace(attached, rows=each.rows[what]))
        stay.slot = each.file.slot(Progress(number, stay.first, stay.first))
        stay.number = number
        job, uid = stay.key
        try:
            if is_new:
                run = {"job": job, "uid": uid, "since": _now(), **self._about}
                fresh = attached.epoch == 0 and not attached.resumed
                each.history = HistoryFile(path_of(self._folder, job, uid), run, pid, fresh=fresh)
            if each.history is not None:
                shape = {name: getattr(attached, name) for name in ("batch_size", "world_size", "drop_last")}
                stay.track = each.history.begin(reads | shape, pid)
        except OSError as e:
            self._fail_history(each, stay, e)

    def _count(self, stay: _Stay, grown: Slice, verdict: dict[str, Any] | None) -> None:
        each = self._logs.get(stay.key)
        if each is not None and each.history is not None and stay.track is not None:
            try:
                each.history.add(stay.track, grown, verdict)
            except OSError as e:
                self._fail_history(each, stay, e)

    def _fail_history(self, each: _Log, stay: _Stay, why: OSError) -> None:
        each.history = None
        log.warning("no report of job %r from now on: %s", stay.key[0], why.strerror or why)

    def _end(self, stay: _Stay, left: Left) -> None:
        try:
            self._write(stay, left)
        finally:
            if (each := self._logs.get(stay.key)) is not None:
                each.stays -= 1
                if each.stays <= 0:
                    each.close()
                    del self._logs[stay.key]

    def _fail(self, stay: _Stay, why: OSError | None) -> None:
        if why is not None:
            text = why.strerror or str(why)
            log.warning("the audit log of job %r in %s cannot be written: %s", stay.key[0], self._folder, text)
        if stay.key in self._logs:
            self._logs[stay.key].close()


def rows_of(attach: Attach, source: dict[str, Any], pipeline: list[dict[str, Any]], listing: Indexed) -> Rows:
    """What a job reads; `source` and `pipeline` are checked wire forms."""
    return Rows(
        source, listing.digest, listing.path, listing.samples, attach.shuffle, attach.seed, pipeline,
        attach.num_shards, attach.shard_index, batch_rows(attach.batching, attach.batch_size),
    )  # fmt: skip


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
