"""Passes events to the coordinator and carries out its actions."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from prepserver.daemon.access import Access
from prepserver.daemon.attachments import Attachments
from prepserver.daemon.caches import Caches
from prepserver.daemon.pool import WorkerPool
from prepserver.daemon.quarantine import Quarantine
from prepserver.daemon.rings import Rings
from prepserver.memory.budget import machine_free_bytes
from prepserver.memory.errors import MemoryShort
from prepserver.protocol import work
from prepserver.schedule.actions import (
    Action,
    Admit,
    Announce,
    DropLane,
    DropRing,
    DropStream,
    End,
    GoesAlone,
    Joined,
    KillWorker,
    MakeRing,
    Move,
    OpenLane,
    OpenStream,
    QuarantineSample,
    Refuse,
    Say,
    Submit,
)
from prepserver.schedule.coordinator import Coordinator
from prepserver.schedule.events import Event, RingMade, RingRefused

log = logging.getLogger(__name__)

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Answers(Protocol):
    """Tells clients whether they are admitted: `Clients`."""

    def answer(self, answer: Admit | Refuse | End) -> None:
        """Answers a question, or ends an attachment."""


class Driver:
    """See the module.

    Attributes:
        access: The limit of each user's memory.
        pool: The workers; set before the first event.
        clients: Receives answers; set before the first event.
    """

    pool: WorkerPool
    clients: Answers

    def __init__(
        self,
        coordinator: Coordinator,
        rings: Rings,
        caches: Caches,
        attachments: Attachments,
        quarantine: Quarantine,
        access: Access,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._coordinator = coordinator
        self._rings = rings
        self._caches = caches
        self._attachments = attachments
        self._quarantine = quarantine
        self.access = access
        self._clock = clock
        self._events: deque[Event] = deque()
        self._is_busy = False

    def happened(self, event: Event) -> None:
        """Handles an event, after all earlier ones."""
        self._events.append(event)
        if self._is_busy:
            return  # an action of the current event caused this one
        self._is_busy = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        finally:
            self._is_busy = False

    def _handle(self, event: Event) -> None:
        now: Event | None = event
        failed: Exception | None = None
        while now is not None:
            actions, now = self._coordinator.handle(now, self._clock()), None
            for action in actions:
                try:
                    now = self._do(action)
                except Exception as e:  # noqa: BLE001 - the table already contains the other actions
                    failed = failed or e
        if failed is not None:
            raise failed

    def _do(self, action: Action) -> Event | None:
        match action:
            case Submit(worker, task, stream, lanes, position, count, alone):
                self.pool.send(worker, work.Fill(task, stream, list(lanes), position, count, alone))
            case Announce():
                self._attachments.announce(action)
            case Admit() | Refuse() | End():
                self.clients.answer(action)
            case MakeRing():
                return self._make_ring(action)
            case Move():
                self._attachments.moved(action)
            case OpenStream() | OpenLane() | DropLane() | DropStream() | DropRing() | KillWorker():
                self._tell_workers(action)
            case QuarantineSample():
                self._put_away(action)
            case Joined() | GoesAlone() | Say():
                _say(action)
        return None

    def _make_ring(self, asked: MakeRing) -> RingMade | RingRefused:
        def allow(nbytes: int) -> None:
            self.access.check_ring(asked.uid, self._rings.bytes_of(asked.uid), nbytes)

        try:
            ring = self._rings.create(asked.lane, asked.uid, asked.fields, (asked.wanted, asked.needed), allow)
        except MemoryShort as e:
            if machine_free_bytes()[0] < e.asked_bytes:
                self._caches.free_idle()
            return RingRefused(asked.lane, "memory", str(e))
        except OSError as e:  # such as a lack of descriptors; running jobs go on
            return RingRefused(asked.lane, "busy", f"the daemon cannot take another job now: {e}")
        except Exception as e:
            log.exception("an error in making a ring; please report it")
            return RingRefused(asked.lane, "internal", f"an error in the daemon: {type(e).__name__}: {e}")
        return RingMade(asked.lane, ring.layout.rows)

    def _tell_workers(self, action: OpenStream | OpenLane | DropLane | DropStream | DropRing | KillWorker) -> None:
        match action:
            case OpenStream() | OpenLane():
                self.pool.broadcast(*self._opening(action))
            case DropLane(lane):
                self._rings.drop(lane)
                self.pool.broadcast(work.DropLane(lane), ())
            case DropStream(stream):
                self.pool.broadcast(work.DropStream(stream), ())
            case DropRing(lane):
                self._rings.drop(lane)
            case KillWorker(worker):
                self.pool.end(worker)

    def setup(self) -> Iterable[tuple[Any, Sequence[int]]]:
        """The messages for a new worker, with their descriptors."""
        return [*self._caches.setup(), *map(self._opening, self._coordinator.setup())]

    def _opening(self, action: OpenStream | OpenLane) -> tuple[Any, Sequence[int]]:
        if isinstance(action, OpenStream):
            return action.spec, ()
        ring = self._rings.held[action.lane]
        layout = ring.layout.to_wire()
        return work.AddLane(action.lane, action.stream, action.pipeline, layout, action.quarantined), (ring.fd,)

    def _put_away(self, bad: QuarantineSample) -> None:
        where = f" for pipeline {bad.pipeline[:12]} ({bad.ops})" if bad.pipeline else ""
        log.error("sample %d killed workers repeatedly and is quarantined%s", bad.index, where)
        self._quarantine.add(bad.source, bad.index, bad.why, bad.dataset, bad.pipeline, bad.ops)
        for stream, lane in bad.places:
            self.pool.broadcast(work.Quarantine(stream, [bad.index], lane), ())
        # Another worker may have just begun with this sample, and would die next.
        for worker, task in self.pool.at_sample(bad.index):
            if self._coordinator.source_of(task) == bad.source:
                self.pool.end(worker)


def _say(action: Joined | GoesAlone | Say) -> None:
    match action:
        case Joined(stream, into):
            log.info("the jobs of stream %d have joined stream %d", stream, into)
        case GoesAlone(stream, why):
            log.info("stream %d goes on alone: %s", stream, why)
        case Say(level, text):
            log.log(_LEVELS[level], "%s", text)
