"""Carries out what the coordinator decides: memory, messages to workers, answers to clients, and the log."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from prepserver.daemon.access import Access
from prepserver.daemon.attachments import Attachments
from prepserver.daemon.caches import Caches
from prepserver.daemon.clients import Clients
from prepserver.daemon.pool import WorkerPool
from prepserver.daemon.quarantine import Quarantine
from prepserver.daemon.questions import Questions
from prepserver.daemon.rings import Rings
from prepserver.memory.budget import machine_free_bytes
from prepserver.memory.errors import MemoryShort
from prepserver.memory.segment import FILES_LIMIT
from prepserver.protocol import work
from prepserver.schedule import actions
from prepserver.schedule.coordinator import Coordinator
from prepserver.schedule.events import Event, RingMade, RingRefused

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Executor:
    """Carries out actions, one at a time, with the part of the daemon that each one needs."""

    coordinator: Coordinator
    rings: Rings
    caches: Caches
    attachments: Attachments
    quarantine: Quarantine
    access: Access
    pool: WorkerPool
    clients: Clients
    questions: Questions

    def carry_out(self, action: actions.Action) -> Event | None:
        """Carries out one action; returns the event that answers it, if one does."""
        match action:
            case actions.Submit(worker, fill):
                self.pool.send(worker, fill)
            case actions.Announce():
                self.attachments.announce(action)
            case actions.Admit() | actions.Refuse():
                self.questions.answer(action)
            case actions.End():
                self.clients.end_attachment(action)
            case actions.MakeRing():
                return self._make_ring(action)
            case actions.Move():
                self.attachments.moved(action)
            case actions.QuarantineSample():
                self._quarantine(action)
            case actions.Joined() | actions.GoesAlone() | actions.Say():
                _say(action)
            case actions.KillWorker(worker):
                self.pool.end(worker)
            case _:
                self._tell_workers(action)
        return None

    def _make_ring(self, asked: actions.MakeRing) -> RingMade | RingRefused:
        def allow(nbytes: int) -> None:
            self.access.check_ring(asked.uid, self.rings.bytes_of(asked.uid), nbytes)

        try:
            ring = self.rings.create(asked.lane, asked.uid, asked.fields, (asked.wanted, asked.needed), allow)
        except MemoryShort as e:
            if machine_free_bytes()[0] < e.asked_bytes:
                self.caches.free_idle()
            return RingRefused("memory", str(e))
        except OSError as e:  # such as a lack of descriptors; running jobs continue
            if e.errno == errno.EFBIG:  # which does not pass
                return RingRefused("memory", f"the daemon cannot make a ring: {FILES_LIMIT}")
            return RingRefused("busy", f"the daemon cannot take another job now: {e}")
        except Exception as e:
            log.exception("a ring could not be made because of an error in the daemon; please report it")
            return RingRefused("internal", f"an error in the daemon: {type(e).__name__}: {e}")
        return RingMade(ring.layout.rows)

    def _tell_workers(
        self, action: work.AddStream | work.AddLane | work.DropLane | work.DropStream | actions.DropRing
    ) -> None:
        if isinstance(action, actions.DropRing | work.DropLane):
            self.rings.drop(action.lane)
        if not isinstance(action, actions.DropRing):  # no worker knows its lane
            self.pool.broadcast(*_with_ring(action, self.rings))

    def _quarantine(self, bad: actions.QuarantineSample) -> None:
        where = f" for pipeline {bad.pipeline[:12]} ({bad.ops})" if bad.pipeline else ""
        log.error(
            "sample %d of %s killed workers repeatedly and is quarantined%s: %s",
            bad.index, bad.dataset or "an unknown dataset", where, bad.why,
        )  # fmt: skip
        self.quarantine.add(bad.source, bad.index, bad.why, bad.dataset, bad.pipeline, bad.ops)
        for stream, lane in bad.places:
            self.pool.broadcast(work.Quarantine(stream, [bad.index], lane), ())
        # Another worker may have just begun with this sample, and would die next.
        for worker, task in self.pool.at_sample(bad.index):
            if self.coordinator.source_of(task) == bad.source:
                self.pool.end(worker)


def setup(coordinator: Coordinator, rings: Rings, caches: Caches) -> Iterable[tuple[Any, Sequence[int]]]:
    """The messages for a new worker, with their descriptors."""
    return [*caches.setup(), *(_with_ring(message, rings) for message in coordinator.setup())]


def _with_ring(message: Any, rings: Rings) -> tuple[Any, Sequence[int]]:
    """A message to workers, with the descriptor of the ring that it brings."""
    return message, (rings.held[message.lane].fd,) if isinstance(message, work.AddLane) else ()


def _say(action: actions.Joined | actions.GoesAlone | actions.Say) -> None:
    match action:
        case actions.Joined(stream, into):
            log.info("the jobs of stream %d have joined stream %d", stream, into)
        case actions.GoesAlone(stream, why):
            log.info("stream %d goes on alone: %s", stream, why)
        case actions.Say(level, text):
            getattr(log, level)("%s", text)
