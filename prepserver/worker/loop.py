"""A worker's life: takes messages from the daemon one by one, fills rows, answers.

It keeps what it was told of streams and lanes and nothing else: no task is remembered, so any task can be
given to any worker again. Whatever goes wrong inside a task is answered and survived; a message that makes
no sense is a bug of the daemon, and ends the process.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import logging
import select
import socket
from pathlib import Path
from typing import Any

from prepserver.memory.ring import Ring
from prepserver.order import make_order
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.shard import Shard
from prepserver.pipeline.sources import source_from_wire
from prepserver.protocol import work
from prepserver.protocol.codec import MAX_MESSAGE_BYTES
from prepserver.protocol.layout import RingLayout
from prepserver.protocol.schema import ProtocolError
from prepserver.source import Roots, open_source
from prepserver.source.errors import printable
from prepserver.telemetry.page import StatsPage
from prepserver.transform import row_makers
from prepserver.worker.channel import ChannelClosed, close_all, receive, send
from prepserver.worker.fill import BadRow, Stream, Target, fill

EXIT_DONE = 0
EXIT_BUG = 70  # sysexits.h: EX_SOFTWARE

_COLLECT_IDLE, _COLLECT_BUSY = 16, 256
"""Tasks between two runs of the garbage collector: when there is nothing to do, and when there always is."""

_REASONS_BYTES = MAX_MESSAGE_BYTES // 2
"""For all reasons of one `Filled`; the rest is for its numbers."""


def run(number: int, sock: socket.socket, page_fd: int) -> int:
    """Serves the daemon until it hangs up.

    Args:
        number: This worker's name in logs.
        sock: The line to the daemon, blocking.
        page_fd: Its statistics page; closed here.

    Returns:
        The exit status.
    """
    log = logging.getLogger(f"prepserver.worker.{number}")
    page = StatsPage(page_fd, writable=True)
    close_all([page_fd])
    worker = _Worker(sock, page, log)
    gc.disable()  # not in the middle of a sample
    try:
        while True:
            worker.collect_garbage()
            worker.handle(*worker.next())
    except ChannelClosed:
        return EXIT_DONE
    except (ProtocolError, _UnknownName):
        log.exception("the daemon says what it may not")
        return EXIT_BUG


_NEVER = -1  # no position


class _UnknownName(LookupError):
    """A stream or lane that was never added."""


class _Broken(Exception):
    """A stream or lane that could not be set up: every task that needs it fails with this."""


class _Worker:
    def __init__(self, sock: socket.socket, page: StatsPage, log: logging.Logger) -> None:
        self._sock = sock
        self._page = page
        self._log = log
        self._streams: dict[int, tuple[Stream, set[int]] | _Broken] = {}
        self._lanes: dict[int, Target | _Broken] = {}
        self._tasks_since_collect = 0
        self._task = 0
        self._soon_at = _NEVER
        self._arrived = select.poll()
        self._arrived.register(sock, select.POLLIN)
        self._ahead: collections.deque[tuple[Any, list[int]] | ProtocolError] = collections.deque()

    def next(self) -> tuple[Any, list[int]]:
        """The next message and its descriptors, waiting for it.

        Raises:
            ChannelClosed: The daemon is gone.
            ProtocolError: It says what it may not.
        """
        message = self._ahead.popleft() if self._ahead else receive(self._sock, work.TO_WORKER)
        if isinstance(message, ProtocolError):
            raise message
        return message

    def handle(self, message: Any, fds: list[int]) -> None:
        """Does what one message asks.

        Raises:
            ChannelClosed: The daemon is gone.
            _UnknownName: The daemon is confused.
        """
        try:
            match message:
                case work.Fill():
                    self._fill(message)
                case work.AddStream():
                    self._streams[message.stream] = self._open_stream(message)
                case work.AddLane():
                    self._lanes[message.lane] = self._open_lane(message, fds)
                case work.Quarantine(stream, indices):
                    self._quarantine(_known(self._streams, "stream", stream), indices)
                case work.DropLane(lane):
                    _known(self._lanes, "lane", lane)
                    del self._lanes[lane]
                case work.DropStream(stream):
                    _known(self._streams, "stream", stream)
                    del self._streams[stream]
                case _:
                    raise ProtocolError(f"unexpected {type(message).__name__}")
        finally:
            close_all(fds)  # a mapping needs no descriptor

    def collect_garbage(self) -> None:
        """Runs the collector when it is due, in a pause if there are pauses."""
        if self._tasks_since_collect < _COLLECT_IDLE:
            return
        if self._tasks_since_collect >= _COLLECT_BUSY or not (self._ahead or self._arrived.poll(0)):
            gc.collect()
            self._tasks_since_collect = 0

    def _begin_sample(self, position: int, index: int) -> None:
        if position == self._soon_at:
            send(self._sock, work.Soon(self._task))
            self._soon_at = _NEVER  # a replacement has the same position
        if self._arrived.poll(0):  # half a microsecond
            self._look_ahead()
        self._page.begin_sample(position, index)

    def _look_ahead(self) -> None:
        """Takes what has arrived in the middle of a chunk; only a quarantine cannot wait for the chunk's end.

        The sample that it names has just killed another worker, and may be the next one here.
        """
        with contextlib.suppress(ChannelClosed):  # said again when the chunk is done
            while self._arrived.poll(0):
                try:
                    message, fds = receive(self._sock, work.TO_WORKER)
                except ProtocolError as e:
                    self._ahead.append(e)
                    return
                known = self._streams.get(message.stream) if isinstance(message, work.Quarantine) else None
                if known is not None:
                    self._quarantine(known, message.indices)
                else:
                    self._ahead.append((message, fds))

    @staticmethod
    def _quarantine(stream: tuple[Stream, set[int]] | _Broken, indices: list[int]) -> None:
        if not isinstance(stream, _Broken):
            stream[1].update(indices)

    def _open_stream(self, told: work.AddStream) -> tuple[Stream, set[int]] | _Broken:
        try:
            roots = Roots(told.roots) if told.roots else None
            source = open_source(source_from_wire(told.source), Path(told.index_path), roots)
            shard = Shard(told.num_shards, told.shard_index)
            order = make_order(told.shuffle, len(source), told.seed, shard, told.batch_rows)
        except Exception as e:  # noqa: BLE001 - told with every task that needs the stream
            self._log.exception("stream %d", told.stream)
            return _Broken(_text(e))
        quarantined = set(told.quarantined)
        return Stream(source, order, told.seed, quarantined), quarantined

    def _open_lane(self, told: work.AddLane, fds: list[int]) -> Target | _Broken:
        try:
            (fd,) = fds
            makers = row_makers(Pipeline.from_wire(told.pipeline))
            return makers, Ring(fd, RingLayout.from_wire(told.layout))
        except Exception as e:  # noqa: BLE001 - told with every task that needs the lane
            self._log.exception("lane %d", told.lane)
            return _Broken(_text(e))

    def _fill(self, task: work.Fill) -> None:
        stream = _known(self._streams, "stream", task.stream)
        lanes = [_known(self._lanes, "lane", lane) for lane in task.lanes]
        self._page.begin_task(task.task)
        self._task = task.task
        self._soon_at = task.position + task.count - 1 if task.say_soon else _NEVER
        try:
            for needed in (stream, *lanes):
                if isinstance(needed, _Broken):
                    # not the one that is kept: a traceback would keep this task's rings mapped
                    raise _Broken(str(needed))
            made = fill(stream[0], lanes, task.position, task.count, self._begin_sample)
        except Exception as e:  # noqa: BLE001 - whatever it is, the task's end must be told
            self._page.fail_task()
            if not isinstance(e, _Broken):  # that was logged when it broke
                self._log.exception("task %d: positions %d + %d", task.task, task.position, task.count)
            send(self._sock, work.Failed(task.task, _text(e)))
        else:
            self._page.end_task(task.count, len({row.position for row in made.bad}), made.read_ns, made.make_ns)
            send(self._sock, work.Filled(task.task, _bad_rows(made.bad, task.lanes), made.read_ns, made.make_ns))
        self._tasks_since_collect += 1


def _known(table: dict[int, Any], what: str, number: int) -> Any:
    try:
        return table[number]
    except KeyError:
        raise _UnknownName(f"no {what} {number} was added") from None


def _bad_rows(bad: list[BadRow], lanes: list[int]) -> list[tuple[int, int, str, list[int]]]:
    """`bad` as a message holds it; reasons are cut where there are so many that they would not fit."""
    room = _REASONS_BYTES // max(1, len(bad))
    return [
        (
            row.position,
            row.index,
            row.reason.encode()[:room].decode(errors="ignore"),
            [] if len(row.targets) == len(lanes) else [lanes[t] for t in row.targets],
        )
        for row in bad
    ]


def _text(error: Exception) -> str:
    """An error as `Failed` tells it: class and text, one line."""
    if isinstance(error, _Broken):
        return str(error)
    notes = "; ".join(getattr(error, "__notes__", ()))
    line = f"{type(error).__name__}: {error}" + (f" ({notes})" if notes else "")
    return printable(" ".join(line.split()))[:1000]
