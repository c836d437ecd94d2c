"""A worker's loop: takes messages from the daemon one by one, fills rows, answers.

It keeps the daemon's streams and lanes, and remembers no task, so any task can be given to any worker again. Errors
inside a task are reported, and the worker goes on; a message that makes no sense is a bug of the daemon and ends the
process. The module is long because it answers every kind of message.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import logging
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prepserver.cache.store import Shape, Store
from prepserver.memory.errors import SegmentError
from prepserver.memory.passing import close_all
from prepserver.memory.ring import ArrayRows, Ring
from prepserver.order import make_order
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.shard import Shard
from prepserver.pipeline.sources import source_from_wire
from prepserver.protocol import work
from prepserver.protocol.codec import MAX_MESSAGE_BYTES
from prepserver.protocol.layout import RingLayout
from prepserver.protocol.schema import ProtocolError
from prepserver.source import Roots, open_source
from prepserver.source.cache import damaged
from prepserver.source.errors import printable
from prepserver.telemetry.page import NO_LANE, NO_TASK, StatsPage
from prepserver.transform import DECODING
from prepserver.worker.channel import ChannelClosed, receive, send
from prepserver.worker.fill import BadRow, LaneError, describe, fill
from prepserver.worker.sandbox import OPEN, Seal
from prepserver.worker.streams import Lane, Stream

_COLLECT_IDLE, _COLLECT_BUSY = 16, 256
"""Tasks between two runs of the garbage collector: in a pause, and without pauses."""

_REASONS_BYTES = MAX_MESSAGE_BYTES // 2  # for all reasons in one `Filled` message; the rest is for its numbers


def run(number: int, sock: socket.socket, page_fd: int, seal: Seal = OPEN) -> int:
    """Serves the daemon on `sock`, which blocks, until it hangs up; returns the exit status.

    It closes `page_fd`, its statistics page, and `seal` around the known streams before the first task begins.
    """
    log = logging.getLogger(f"prepserver.worker.{number}")
    page = StatsPage(page_fd, writable=True)
    close_all([page_fd])
    worker = Worker(number, sock, page, log, seal)
    gc.disable()  # so that it does not run in the middle of a sample
    try:
        while True:
            worker.collect_garbage()
            worker.handle(*worker.next())
    except ChannelClosed:
        return os.EX_OK
    except _Sealed as e:
        log.info("this worker ends and another takes its place: %s", e)
        return work.EXIT_SEALED
    except (ProtocolError, KeyError):  # KeyError: a stream or lane that was never added
        log.exception("protocol error of the daemon")
        return os.EX_SOFTWARE


class _Broken(Exception):
    """A task needs a stream, or this lane, that could not be set up; the reason was logged then."""

    def __init__(self, text: str, lane: int | None = None) -> None:
        super().__init__(text)
        self.lane = lane


class _Sealed(Exception):
    """The sandbox does not let this process read a stream."""


@dataclass(slots=True)
class Announced:
    """A stream that the daemon has announced; the first task that needs it opens it, in the sandbox."""

    add: work.AddStream
    quarantined: set[int]
    opened: Stream | str | None = None  # the stream, or why it cannot be opened; None before the first task
    damaged: str = ""  # the index file, if its damage is the reason


def ring_of(layout: RingLayout, fds: list[int]) -> ArrayRows:
    """The rows of a lane: the ring whose descriptor came with it."""
    (fd,) = fds
    return Ring(fd, layout)


class Worker:
    """Handles the daemon's messages one by one; answers go to `sock`.

    `rows` returns the rows of a lane, from their layout and the descriptors that came with it.
    """

    def __init__(
        self, number: int, sock: socket.socket, page: StatsPage, log: logging.Logger, seal: Seal = OPEN,
        rows: Callable[[RingLayout, list[int]], ArrayRows] = ring_of,
    ) -> None:  # fmt: skip
        self._number = number
        self._sock = sock
        self._page = page
        self._log = log
        self._seal = seal
        self._rows = rows
        self.streams: dict[int, Announced] = {}  # by number
        self._lanes: dict[int, Lane | str] = {}  # by number: the lane, or why it could not be set up
        self._caches: dict[int, tuple[work.AddCache, Store]] = {}
        self._tasks_since_collect = 0
        self._filled: list[int] = []  # the lanes of the current task
        self._begun = NO_TASK  # the task whose reads were begun last
        self._arrived = select.poll()
        self._arrived.register(sock, select.POLLIN)
        self._ahead: collections.deque[tuple[Any, list[int]] | ProtocolError] = collections.deque()

    def next(self) -> tuple[Any, list[int]]:
        """Waits for the next message; returns it with its descriptors."""
        message = self._ahead.popleft() if self._ahead else receive(self._sock, work.TO_WORKER)
        if isinstance(message, ProtocolError):
            raise message
        return message

    def handle(self, message: Any, fds: list[int]) -> None:
        """Does what one message asks; raises `_Sealed` if only another process can."""
        try:
            match message:
                case work.Fill():
                    self._fill(message)
                case work.AddStream():
                    if not self._seal.holds(message.places):
                        raise _Sealed(f"its sandbox does not let it read the new stream {message.stream}")
                    self.streams[message.stream] = Announced(message, set(message.quarantined))
                case work.AddLane():
                    self._lanes[message.lane] = self._open_lane(message, fds, self.streams[message.stream])
                case work.Quarantine():
                    self._quarantine(message)
                case work.AddCache():
                    self._open_cache(message, fds)
                case work.DropCache(cache):
                    self._caches.pop(cache, None)
                case work.DropLane(lane):
                    del self._lanes[lane]
                    self._tasks_since_collect = _COLLECT_BUSY  # garbage may hold the ring, and no task may come
                case work.DropStream(stream):
                    del self.streams[stream]
                case _:
                    raise ProtocolError(f"unexpected {type(message).__name__}")
        finally:
            close_all(fds)  # a mapping needs no descriptor

    def open(self, stream: int) -> Stream | str:
        """A stream, opened at the first call, or the error that every task of it reports."""
        announced = self.streams[stream]
        if announced.opened is None:
            announced.opened = self._open_stream(announced)
        return announced.opened

    def collect_garbage(self) -> None:
        """Runs the garbage collector if it is due, preferably in a pause."""
        if self._tasks_since_collect < _COLLECT_IDLE:
            return
        if self._tasks_since_collect >= _COLLECT_BUSY or not (self._ahead or self._arrived.poll(0)):
            gc.collect()
            self._tasks_since_collect = 0

    def _begin_sample(self, position: int, index: int) -> None:
        if self._arrived.poll(0):  # half a microsecond
            self._look_ahead()
        self._page.begin_sample(position, index)

    def _look_ahead(self) -> None:
        """Receives messages in the middle of a chunk, because a quarantine cannot wait for its end.

        The quarantined sample has just killed another worker, and may be the next one here.
        """
        with contextlib.suppress(ChannelClosed):  # raised again after the chunk
            while self._arrived.poll(0):
                try:
                    message, fds = receive(self._sock, work.TO_WORKER)
                except ProtocolError as e:
                    self._ahead.append(e)
                    return
                match message:
                    # A stream or lane that is not known yet may be in `_ahead`.
                    case work.Quarantine(stream, _, lane) if stream in self.streams and lane in {None, *self._lanes}:
                        self._quarantine(message)
                    case _:
                        self._ahead.append((message, fds))
                        if isinstance(message, work.Fill):
                            self._prefetch(message)

    def _prefetch(self, task: work.Fill) -> None:
        """Begins the reads of a task, once, if its source is open; best while the task before it is filled."""
        announced = self.streams.get(task.stream)
        if announced is not None and isinstance(announced.opened, Stream) and task.task != self._begun:
            self._begun = task.task
            found = [self._lanes.get(number) for number in task.lanes]
            lanes = [self._cached(announced, lane) for lane in found if isinstance(lane, Lane)]
            self._cached_stream(announced, announced.opened).prefetch(task.position, task.count, lanes)

    def _begin_step(self, place: int) -> None:
        self._page.begin_step(NO_LANE if place == DECODING else self._filled[place])

    def _quarantine(self, message: work.Quarantine) -> None:
        if message.lane is None:
            self.streams[message.stream].quarantined.update(message.indices)
            return
        lane = self._lanes.get(message.lane)
        if isinstance(lane, Lane):
            lane.quarantined.update(message.indices)

    def _open_stream(self, announced: Announced) -> Stream | str:
        add = announced.add
        try:
            roots = Roots(add.roots) if add.roots else None
            spec = source_from_wire(add.source)
            source = open_source(spec, Path(add.index_path), roots)
            shard = Shard(add.num_shards, add.shard_index)
            order = make_order(add.shuffle, len(source), add.seed, shard, add.batch_rows, *spec.arrangement)
        except Exception as e:  # noqa: BLE001 - every task that needs the stream reports it
            self._log.exception("stream %d", add.stream)
            announced.damaged = _damaged(e)
            return _text(e)
        return Stream(source, order, add.seed, announced.quarantined)

    def _open_lane(self, add: work.AddLane, fds: list[int], announced: Announced) -> Lane | str:
        try:
            pipeline = Pipeline.from_wire(add.pipeline, source_from_wire(announced.add.source).columns)
            return Lane.of(pipeline, self._rows(RingLayout.from_wire(add.layout), fds), add.quarantined)
        except Exception as e:  # noqa: BLE001 - every task that needs the lane reports it
            self._log.exception("lane %d", add.lane)
            return _text(e)

    def _open_cache(self, add: work.AddCache, fds: list[int]) -> None:
        try:
            (fd,) = fds
            store = Store(fd, Shape(add.samples, add.extent_bytes), self._number, add.is_file)
        except (OSError, ValueError, SegmentError) as e:
            self._log.error("cannot use cache %d, so samples are read each time: %s", add.cache, e)
        else:
            self._caches[add.cache] = add, store

    def _cache(self, listing: str, head: str) -> Store | None:
        """The cache for samples of a stream; of two, the one on disk, which is meant to last."""
        if not self._caches or not listing:
            return None
        found = [each for each in self._caches.values() if (each[0].listing, each[0].head) == (listing, head)]
        return max(found, key=lambda each: each[0].is_file)[1] if found else None

    # With a cache, these return copies, so that nothing but `_caches` keeps the memory of a cache.

    def _cached_stream(self, announced: Announced, stream: Stream) -> Stream:
        cache = self._cache(announced.add.listing, "")
        return stream if cache is None else replace(stream, cache=cache)

    def _cached(self, announced: Announced, lane: Lane) -> Lane:
        cache = self._cache(announced.add.listing, lane.head.digest)
        return lane if cache is None else lane._replace(cache=cache)

    def _fill(self, task: work.Fill) -> None:
        announced, found = self.streams[task.stream], [self._lanes[number] for number in task.lanes]
        # ORDER: before the first byte of any dataset or index is read.
        self._seal.close(place for each in self.streams.values() for place in each.add.places)
        began_ns = self._page.begin_task(task.task)
        self._filled = task.lanes
        stream = self.open(task.stream)
        self._prefetch(task)
        try:
            if isinstance(stream, str):
                raise _Broken(stream)
            lanes = []
            for number, lane in zip(task.lanes, found, strict=True):
                if isinstance(lane, str):
                    raise _Broken(lane, number)
                lanes.append(self._cached(announced, lane))
            stream = self._cached_stream(announced, stream)
            made = fill(stream, lanes, task.position, task.count, self._begin_sample, self._begin_step, task.alone)
            if made.bad:
                self._check_seal()
        except _Sealed:
            self._page.fail_task()
            raise
        except Exception as e:  # noqa: BLE001 - the daemon must hear of the task's end in any case
            self._page.fail_task()
            self._check_seal()
            if not isinstance(e, _Broken):  # that was logged when it broke
                self._log.exception("task %d: positions %d + %d", task.task, task.position, task.count)
            index = announced.damaged if isinstance(stream, str) else _damaged(e)
            culprit = e.lane if isinstance(e, _Broken) else task.lanes[e.place] if isinstance(e, LaneError) else None
            answer: work.Failed | work.Filled = work.Failed(task.task, _text(e), culprit, damaged=index)
        else:
            self._page.end_task(task.count, len({row.position for row in made.bad}), made.read_ns, made.make_ns)
            bad, lanes_ns = _bad_rows(made.bad, task.lanes), list(made.lanes_ns)
            answer = work.Filled(
                task.task, bad, made.read_ns, made.make_ns, made.shared_ns, lanes_ns, _flat(made.ops_ns),
                time.monotonic_ns(), began_ns,
            )  # fmt: skip
        # ORDER: after the error is dropped, whose traceback holds the sample: beside it, there may be no memory to
        # send.
        send(self._sock, answer)
        self._tasks_since_collect += 1

    def _check_seal(self) -> None:
        """Raises `_Sealed` if the sandbox may be the cause of an error; another worker then fills the rows again."""
        if self._seal.is_stale:
            raise _Sealed("a folder that its sandbox lets it read has been replaced, or mounted again")


def _bad_rows(bad: list[BadRow], lanes: list[int]) -> list[tuple[int, int, str, list[int]]]:
    """Bad rows in the form of the message; reasons are shortened if they would not fit otherwise."""
    room = _REASONS_BYTES // max(1, len(bad))
    return [
        (
            row.position,
            row.index,
            row.reason.encode()[:room].decode(errors="ignore"),
            [] if len(row.places) == len(lanes) else [lanes[place] for place in row.places],
        )
        for row in bad
    ]


def _flat(ops_ns: Sequence[Sequence[int]]) -> list[int]:
    times = [ns for lane in ops_ns for ns in lane]
    return times if len(times) <= work.MAX_OPS_NS else []


def _damaged(error: Exception) -> str:
    broken = damaged(error)
    return str(broken.path) if broken is not None and broken.is_there else ""


def _text(error: Exception) -> str:
    text = str(error) if isinstance(error, _Broken | LaneError) else describe(error)
    return printable(" ".join(text.split()))[:1000]
