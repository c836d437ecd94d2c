"""Questions of clients: for a place, for the daemon's state, and to stop it.

A rank's question waits until its source is listed. Then the coordinator admits or refuses the rank.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import time
from typing import Any, Protocol

from prepserver.cache.folder import FolderError
from prepserver.daemon.access import Access, Denied
from prepserver.daemon.attach import Peer
from prepserver.daemon.attachments import Attachment, Attachments
from prepserver.daemon.caches import Caches
from prepserver.daemon.driver import Driver
from prepserver.daemon.ledger import Ledger, rows_of
from prepserver.daemon.listings import Listings
from prepserver.daemon.quarantine import Quarantine
from prepserver.daemon.rings import Rings
from prepserver.pipeline.sources import source_from_wire
from prepserver.pipeline.spec import Codes
from prepserver.protocol import work
from prepserver.protocol.messages import Attach, Scanning, Status, Stopping, Welcome
from prepserver.schedule.actions import Admit, Refuse
from prepserver.schedule.asked import Asked, Refusal, check, with_files
from prepserver.schedule.events import KnownBad, RankAttaches, RankLeft

log = logging.getLogger(__name__)

_LEAVING_S = 5.0  # how long a question waits for the memory of a job that has just left


class House(Protocol):
    """The part of the daemon that clients' questions need."""

    @property
    def stops(self) -> bool:
        """Whether it is about to end."""

    @property
    def end_s(self) -> float:
        """Longest time until it has ended; it is about to."""

    @property
    def keeper(self) -> str:
        """Who starts and ends it, and no successor therefore, with what to do; empty if nobody does."""

    def stop(self, why: str, *, at_once: bool) -> None:
        """Lets jobs finish, unless `at_once`, and ends it."""

    @property
    def codes(self) -> Codes:
        """The plug-ins that a question may name."""

    def snapshot(self, since_ns: int | None) -> dict[str, Any]:
        """Its state, and for traces what was done since then."""

    def rows_per_s(self) -> float:
        """Rate at which the busy pool fills rows."""


class Connections(Protocol):
    """Ends connections: `Clients`."""

    def refuse(self, peer: Peer, code: str, text: str, field: str | None = None) -> None:
        """Refuses a question, with the reason."""

    def end(self, peer: Peer, last_word: Status | Stopping) -> None:
        """Sends a peer its last message."""

    def drop(self, peer: Peer) -> None:
        """Ends a connection."""

    def ask(self, peer: Peer, question: Question) -> None:
        """Calls `Questions.ask`; an error there ends only this peer's connection."""


class Question:
    """A rank's question that waits for a listing or for memory; implements `Waiting`.

    Attributes:
        peer: The client.
        asked: The checked question.
        listing: The listing of its source; None until it is made.
        until_s: End of its wait for memory, monotonic.
    """

    def __init__(self, connections: Connections, peer: Peer, asked: Asked) -> None:
        self._connections = connections
        self.peer = peer
        self.asked = asked
        self.listing: work.Indexed | None = None
        self.until_s: float | None = None

    @property
    def is_gone(self) -> bool:
        """See `Waiting`."""
        return not self.peer.is_listening

    def scanning(self, samples: int) -> None:
        """See `Waiting`."""
        if not self.is_gone:
            self.peer.send(Scanning(samples))

    def listed(self, listing: work.Indexed) -> None:
        """See `Waiting`."""
        self.listing = listing
        self._connections.ask(self.peer, self)

    def unlistable(self, reason: str) -> None:
        """See `Waiting`."""
        self._connections.refuse(self.peer, "source", reason)


class Questions:
    """See the module.

    Args:
        house: The daemon.
        connections: The clients' connections.
        driver: Takes events.
        attachments: The admitted ranks.
        rings: The rings of all lanes.
        caches: The caches of all datasets.
        listings: Listings of sources.
        quarantine: Samples that killed workers before.
        ledger: Logs what each job is given.
        access: The rules; a reload replaces them.
    """

    def __init__(
        self,
        house: House,
        connections: Connections,
        driver: Driver,
        attachments: Attachments,
        rings: Rings,
        caches: Caches,
        listings: Listings,
        quarantine: Quarantine,
        ledger: Ledger,
        access: Access,
    ) -> None:
        self._house = house
        self._connections = connections
        self._driver = driver
        self._attachments = attachments
        self._rings = rings
        self._caches = caches
        self._listings = listings
        self._quarantine = quarantine
        self._ledger = ledger
        self.access = access
        self._askers = itertools.count(1)
        self._asking: dict[int, Question] = {}  # by `RankAttaches.asker`
        self._short: list[Question] = []  # wait for memory

    def attach(self, peer: Peer, attach: Attach) -> None:
        """Handles a rank that asks for its rows."""
        try:
            if self._house.stops:
                raise Refusal("stopping", "the daemon is stopping; start it again with `prepserver start`")
            asked = check(attach, self._house.codes)
            files = asked.pipeline.files
            reading = self.access.reading(peer.uid, source_from_wire(asked.source), files)
            # Others could make any number of folders.
            self._caches.check_folder(asked.cache, make=self.access.is_trusted(peer.uid))
        except Refusal as e:
            self._connections.refuse(peer, e.code, str(e), e.field)
        except Denied as e:
            self._connections.refuse(peer, "permission", str(e))
        except FolderError as e:
            self._connections.refuse(peer, "permission", str(e), "cache")
        else:
            self._listings.want(asked.source, Question(self._connections, peer, asked), peer.uid, reading, files)

    def take_short(self) -> list[Question]:
        """Takes the questions that wait for memory, to ask them again."""
        short, self._short = self._short, []
        return short

    def ask(self, question: Question) -> None:
        """Asks the coordinator for a place; the source is listed."""
        asker, listing = next(self._askers), question.listing
        assert listing is not None
        try:
            question.asked = with_files(question.asked, listing.files)
        except Refusal as e:
            self._connections.refuse(question.peer, e.code, str(e), e.field)
            return
        known = tuple((entry.index, entry.pipeline) for entry in self._quarantine.of(listing.digest))
        self._driver.happened(KnownBad(listing.digest, known))
        self._asking[asker] = question
        try:
            rate, limits = self._house.rows_per_s(), self.access.limits
            self._driver.happened(RankAttaches(asker, question.peer.uid, question.asked, listing, rate, limits))
        finally:
            self._asking.pop(asker, None)

    def answer(self, answer: Admit | Refuse) -> None:
        """Carries out the coordinator's decision."""
        question = self._asking.get(answer.asker)
        if question is None:  # decided before an error that ended its client's connection
            if isinstance(answer, Admit):
                self._driver.happened(RankLeft(answer.cursor))
            return
        if isinstance(answer, Admit):
            self._admit(question, answer)
            return
        # While a dropped ring is still held, a question that lacks memory is asked again: a restarted script must not
        # be refused because of the ring of its last run.
        now_s = time.monotonic()
        question.until_s = now_s + _LEAVING_S if question.until_s is None else question.until_s
        is_freed = self._rings.are_leaving or self._caches.are_leaving
        if answer.code == "memory" and is_freed and now_s < question.until_s:
            self._short.append(question)
        else:
            self._connections.refuse(question.peer, answer.code, answer.text, answer.field)

    def _admit(self, question: Question, admit: Admit) -> None:
        peer, attach, listing = question.peer, question.asked.attach, question.listing
        assert listing is not None
        peer.cursor = admit.cursor
        source = question.asked.source
        # ORDER: before the rows of a new job are made, so that its first epoch fills the cache.
        self._caches.want(question.asked.cache, listing, source_from_wire(source).place)
        self._attachments[admit.cursor] = Attachment(admit.cursor, peer, attach)
        ring = self._rings.held[admit.lane]
        rows = rows_of(attach, question.asked.source, question.asked.pipeline.to_wire(), listing)
        self._ledger.attached(
            admit.cursor, peer.uid, attach, rows, admit.epoch_start, admit.position, admit.first, ring.layout.rows,
            peer.pid,
        )  # fmt: skip
        try:
            given = peer.give(ring.fd)
        except OSError:  # the client is gone
            self._connections.drop(peer)
            return
        welcome = Welcome(
            admit.cursor, listing.samples, listing.num_classes, listing.digest,
            admit.epoch_start, admit.position, admit.ahead, ring.layout.to_wire(), admit.alone_upto,
            listing.content_digest, given, question.asked.pipeline.code,
        )  # fmt: skip
        if not peer.send(welcome):
            self._connections.drop(peer)
            return
        log.info(
            "job %r rank %d/%d (pid %d): %d samples, from position %d, lane %s", attach.job, attach.rank,
            attach.world_size, peer.pid, listing.samples, admit.position, admit.lane,
        )  # fmt: skip

    def status(self, peer: Peer, since_ns: int | None) -> None:
        """Handles a question for the daemon's state."""
        data = json.dumps(self._house.snapshot(since_ns)).encode()
        try:
            fd = os.memfd_create("prepserver-status", os.MFD_CLOEXEC)
        except OSError as e:
            self._connections.refuse(peer, "busy", f"the state is not available now: {e}")
            return
        try:
            os.write(fd, data)
            self._connections.end(peer, Status(len(data), peer.give(fd)))
        except OSError:  # the client is gone
            self._connections.drop(peer)
        finally:
            os.close(fd)

    def stop(self, peer: Peer, successor: bool) -> None:
        """Handles a request to stop the daemon, or to leave its place to a successor."""
        if not self.access.may_stop(peer.uid):
            text = f"only uid {os.getuid()} and root may stop this daemon, not uid {peer.uid}"
            self._connections.refuse(peer, "permission", text)
            return
        if successor and self._house.keeper:
            self._connections.refuse(peer, "permission", f"this daemon belongs to {self._house.keeper}")
            return
        # Jobs have no need to finish here if they can go on there.
        self._house.stop("a successor is ready" if successor else "prepserver stop", at_once=successor)
        self._connections.end(peer, Stopping(os.getpid(), self._house.end_s))
