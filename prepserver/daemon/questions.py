"""Questions of clients: they ask for a place, for the daemon's state, or that it stops.

A rank's question waits until its source is listed. Then the coordinator admits or refuses the rank.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from prepserver.cache.folder import FolderError, NoFolder
from prepserver.daemon import awake
from prepserver.daemon.access import Access, Denied
from prepserver.daemon.attach import Peer
from prepserver.daemon.attachments import Attachment, Attachments
from prepserver.daemon.caches import Caches
from prepserver.daemon.clients import AnyQuestion, Clients
from prepserver.daemon.driver import Driver
from prepserver.daemon.ledger import Ledger, rows_of
from prepserver.daemon.peers import Crowded
from prepserver.daemon.pool import WorkerPool
from prepserver.daemon.quarantine import Quarantine
from prepserver.daemon.rings import Rings
from prepserver.memory.passing import close_all
from prepserver.memory.segment import FILES_LIMIT, create_segment
from prepserver.pipeline.batches import batch_rows
from prepserver.pipeline.caching import CacheSpec
from prepserver.pipeline.sources import source_from_wire
from prepserver.protocol import work
from prepserver.protocol.messages import AskLogs, AskStatus, AskStop, Attach, Logs, Scanning, Status, Stopping, Welcome
from prepserver.schedule.actions import Admit, Refuse
from prepserver.schedule.asked import Asked, Refusal, check, with_files
from prepserver.schedule.events import RankAttaches, RankLeft
from prepserver.telemetry.remedies import remedies_of

log = logging.getLogger(__name__)

_LEAVING_S = 5.0  # how long a question waits for the memory of a job that has just left


class Life(Protocol):
    """The daemon as a whole, as far as clients ask about it."""

    @property
    def stops(self) -> bool:
        """Whether it is about to end."""

    @property
    def end_s(self) -> float:
        """Longest time until it has ended, if it is about to."""

    @property
    def supervisor(self) -> str:
        """Who starts and ends it, so that no successor may; empty if nobody does."""

    def stop(self, why: str, *, at_once: bool = False) -> None:
        """Lets jobs finish, unless `at_once`, and ends the daemon."""

    def snapshot(self, since_ns: int | None = None) -> dict[str, Any]:
        """Its state as plain data."""

    def rows_per_s(self) -> float:
        """Rows that the workers can make."""


@dataclass(slots=True, eq=False)
class Question:
    """A rank's question that waits for a listing or for memory; implements `Waiting`."""

    questions: Questions
    peer: Peer
    asked: Asked
    listing: work.Indexed | None = None
    until_s: float | None = None  # end of its wait for memory, monotonic

    @property
    def is_gone(self) -> bool:
        """See `Waiting`."""
        return not self.peer.is_listening

    def hear(self, word: work.Indexing | work.Indexed | work.IndexFailed) -> None:
        """See `Waiting`."""
        match word:
            case work.Indexing(samples):
                if not self.is_gone:
                    self.peer.send(Scanning(samples))
            case work.Indexed():
                self.listing = word
                self.questions.admit(self)
            case work.IndexFailed(reason):
                self.questions.clients.refuse(self.peer, "source", reason)


@dataclass(slots=True, eq=False)
class Questions:
    """Answers the questions of clients, and keeps those of ranks that wait for memory."""

    life: Life
    driver: Driver
    clients: Clients
    attachments: Attachments
    access: Access
    pool: WorkerPool
    rings: Rings
    caches: Caches
    quarantine: Quarantine
    ledger: Ledger
    _askers: Iterator[int] = field(default_factory=lambda: itertools.count(1), init=False)
    _asking: dict[int, Question] = field(default_factory=dict, init=False)  # by `RankAttaches.asker`
    _short: list[Question] = field(default_factory=list, init=False)  # wait for memory

    def ask(self, peer: Peer, question: AnyQuestion) -> None:
        """Handles the one question of a client."""
        match question:
            case Attach():
                self._attach(peer, question)
            case AskStatus(since_ns):
                self._status(peer, since_ns)
            case AskStop(successor):
                self._stop(peer, successor)
            case AskLogs(job):
                self._logs(peer, job)

    def _attach(self, peer: Peer, attach: Attach) -> None:
        try:
            if self.life.stops:
                raise Refusal("stopping", "the daemon is stopping: wait until it runs again")
            self.clients.peers.check_job(peer)
            asked = check(attach, self.pool.codes)
            files = asked.pipeline.files
            reading = self.access.reading(peer.uid, source_from_wire(asked.source), files)
            # Other users could make any number of folders.
            self.caches.check_folder(asked.cache, make=self.access.is_trusted(peer.uid))
        except Refusal as e:
            self.clients.refuse(peer, e.code, str(e), e.field)
        except Crowded as e:
            self.clients.refuse(peer, "busy", str(e))
        except Denied as e:
            self.clients.refuse(peer, "permission", str(e))
        except FolderError as e:
            self.clients.refuse(peer, "spec" if isinstance(e, NoFolder) else "permission", str(e), "cache")
        else:
            self.pool.listings.want(asked.source, Question(self, peer, asked), peer.uid, reading, files)

    def tick(self) -> None:
        """Asks again for ranks that wait for memory; call it several times a second."""
        short, self._short = self._short, []
        for question in short:
            self.admit(question)

    def admit(self, question: Question) -> None:
        """Asks the coordinator for a place, once the source is listed and if the client is still there."""
        if question.peer.is_listening:
            self.clients.on_behalf_of(question.peer, lambda: self._ask_for_place(question))

    def _ask_for_place(self, question: Question) -> None:
        asker, listing = next(self._askers), question.listing
        assert listing is not None
        try:
            question.asked = with_files(question.asked, listing.files)
        except Refusal as e:
            self.clients.refuse(question.peer, e.code, str(e), e.field)
            return
        known = self._known_bad(listing.digest)
        rate, limits = self.life.rows_per_s(), self.access.limits
        self._asking[asker] = question
        try:
            self.driver.happened(RankAttaches(asker, question.peer.uid, question.asked, listing, rate, limits, known))
        finally:
            self._asking.pop(asker, None)

    def answer(self, answer: Admit | Refuse) -> None:
        """Carries out the coordinator's decision."""
        question = self._asking.get(answer.asker)
        if question is None:  # decided before an error, which ended the connection of its client
            if isinstance(answer, Admit):
                self.driver.happened(RankLeft(answer.cursor))
            return
        if isinstance(answer, Admit):
            self._admit(question, answer)
            return
        # While memory of jobs that have left is being freed, a question that lacks memory is asked again: a restarted
        # script must not be refused because of the ring of its last run.
        now_s = awake.now_s()
        question.until_s = now_s + _LEAVING_S if question.until_s is None else question.until_s
        is_freed = self.rings.are_leaving or self.caches.are_leaving
        if answer.code == "memory" and is_freed and now_s < question.until_s:
            self._short.append(question)
        else:
            self.clients.refuse(question.peer, answer.code, answer.text, answer.field)

    def _admit(self, question: Question, admit: Admit) -> None:
        peer, asked, listing = question.peer, question.asked, question.listing
        attach = asked.attach
        assert listing is not None
        peer.cursor = admit.cursor
        # ORDER: before the rows of a new job are made, so that its first epoch fills the cache.
        source, cache = source_from_wire(asked.source), asked.cache
        remedies = remedies_of(source, asked.pipeline.apart)
        shuffles_samples = attach.shuffle != "none" and not batch_rows(attach.batching, attach.batch_size)
        # A cache of decoded images in memory would lose its room to another one.
        has_room = cache is None or (cache.form == "decoded" and cache.folder is not None)
        if shuffles_samples and has_room and self.caches.are_needed(listing, source.location):
            self.caches.want(CacheSpec("encoded"), listing, source.location)
            remedies = remedies._replace(encoded=False)
        self.caches.want(cache, listing, source.location)
        self.attachments[admit.cursor] = Attachment(admit.cursor, peer, attach, remedies)
        ring = self.rings.held[admit.lane]
        rows = rows_of(attach, asked.source, asked.pipeline.to_wire(), listing)
        self.ledger.attached(
            admit.cursor, peer.uid, attach, rows, admit.epoch_start, admit.position, admit.first, ring.layout.rows,
            peer.pid,
        )  # fmt: skip
        try:
            given = peer.give(ring.fd)
        except OSError:  # the client is gone
            self.clients.drop(peer)
            return
        welcome = Welcome(
            admit.cursor, listing.samples, listing.num_classes, listing.digest,
            admit.epoch_start, admit.position, admit.ahead, ring.layout.to_wire(), admit.alone_upto,
            listing.content_digest, given, asked.pipeline.code, listing.classes,
        )  # fmt: skip
        if not peer.send(welcome):
            self.clients.drop(peer)
            return
        log.info(
            "job %r rank %d/%d (pid %d): %d samples, from position %d, lane %s", attach.job, attach.rank,
            attach.world_size, peer.pid, listing.samples, admit.position, admit.lane,
        )  # fmt: skip

    def _status(self, peer: Peer, since_ns: int | None) -> None:
        strikes = self.driver.coordinator.strikes
        try:
            for source in {source for source, _ in strikes.quarantined}:
                strikes.set_known(source, self._known_bad(source))  # some may have been cleared
            data = json.dumps(self.life.snapshot(since_ns)).encode()
            fd = create_segment("prepserver-status", len(data))  # fails if not all of it may be written
        except OSError as e:
            why = FILES_LIMIT if e.errno == errno.EFBIG else str(e)
            self.clients.refuse(peer, "busy", f"the daemon's state is not available now: {why}")
            return
        try:
            os.write(fd, data)
            self.clients.end(peer, Status(len(data), peer.give(fd)))
        except OSError:  # the client is gone
            self.clients.drop(peer)
        finally:
            os.close(fd)

    def _logs(self, peer: Peer, job: str) -> None:
        """Gives a user the files about its own job: the kernel says which user that is."""
        try:
            files = self.ledger.opened(job, peer.uid)
        except OSError as e:
            self.clients.refuse(peer, "busy", f"the log cannot be opened now: {e.strerror}")
            return
        try:
            if files:
                self.clients.end(peer, Logs([name for name, _ in files], [peer.give(fd) for _, fd in files]))
            else:
                self.clients.refuse(peer, "spec", f"this daemon has no log of a job {job!r} of uid {peer.uid}")
        except OSError:  # the client is gone
            self.clients.drop(peer)
        finally:
            close_all([fd for _, fd in files])

    def _known_bad(self, source: str) -> tuple[tuple[int, str], ...]:
        return tuple((entry.index, entry.pipeline) for entry in self.quarantine.of(source))

    def _stop(self, peer: Peer, successor: bool) -> None:
        """Stops the daemon; at once if a successor takes its place."""
        if not self.access.is_trusted(peer.uid):
            text = f"only uid {os.getuid()} and root may stop this daemon, not uid {peer.uid}"
            self.clients.refuse(peer, "permission", text)
            return
        if successor and self.life.supervisor:
            self.clients.refuse(peer, "permission", f"this daemon belongs to {self.life.supervisor}")
            return
        # With a successor, jobs need not finish here, because they continue there.
        self.life.stop("a successor is ready" if successor else "prepserver stop", at_once=successor)
        self.clients.end(peer, Stopping(os.getpid(), self.life.end_s))
