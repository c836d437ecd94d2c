"""Attached ranks: their connections, and what was announced to each. The coordinator knows which rows they read."""

from __future__ import annotations

import errno
import logging
import time
from collections import deque
from dataclasses import dataclass, field

from prepserver.daemon.attach import Peer
from prepserver.daemon.ledger import Ledger
from prepserver.daemon.rings import Rings
from prepserver.protocol.messages import Attach, Moved, Ready, Release
from prepserver.protocol.trace import MOST_RELEASES, Heard, Told
from prepserver.schedule.actions import Announce, Move
from prepserver.telemetry.remedies import Remedies

log = logging.getLogger(__name__)

_UNREAD_RINGS = 3
"""New rings that a client may leave untaken. Each is a descriptor on its way; the kernel allows the daemon's user as
many of these as one process may have open."""

_BAD_ROWS_MOST = 1000  # in one announcement: 64 of them have a reason, and all together take 48 KiB
_REASON_BYTES = 400


@dataclass(slots=True)
class Attachment:
    """One attached rank of a job."""

    cursor: int  # the coordinator's number for it
    peer: Peer  # its connection
    attach: Attach  # its question
    remedies: Remedies = Remedies()  # noqa: RUF009 - it is immutable
    moves: int = 0  # how many new rings it was given
    untaken: int = 0  # how many of them since its last message
    since_s: float = field(default_factory=time.monotonic)  # when it attached, monotonic
    copy_ns: int = 0  # total time for which its loop has waited for copies, as the client reports it
    own_ns: int = 0  # total time that its loop took between batches, as the client reports it
    announced: int = -1  # rows below this position were announced to it; -1 before the first
    rows: int = 0  # rows that were announced to it since, those of its job's other ranks included
    bad: int = 0  # those among them that hold a replacement
    # the last announcements to it, and its last reports
    told: deque[Told] = field(default_factory=lambda: deque(maxlen=MOST_RELEASES))
    heard: deque[Heard] = field(default_factory=lambda: deque(maxlen=MOST_RELEASES))

    def note_release(self, said: Release) -> None:
        """Notes the figures that come with a Release."""
        self.copy_ns, self.own_ns = max(self.copy_ns, said.copy_ns), max(self.own_ns, said.own_ns)
        now_ns = time.monotonic_ns()
        self.heard.append(Heard(now_ns, said.upto, said.batches, said.wait_ns, self.copy_ns, self.own_ns))


class Attachments(dict[int, Attachment]):
    """All attached ranks by cursor."""

    def __init__(self, rings: Rings, ledger: Ledger) -> None:
        super().__init__()
        self._rings = rings
        self._ledger = ledger

    def announce(self, announce: Announce) -> None:
        """Announces rows to a rank."""
        attachment = self.get(announce.cursor)
        if attachment is None or not attachment.peer.is_listening:
            return
        if attachment.moves != announce.moves:
            # A `Move` was not carried out because of an error: these rows are not in the ring that the client has.
            log.error("job %r was not told of its new ring and must attach again", attachment.attach.job)
            attachment.peer.hang_up()
            return
        bad = [(position, index, _cut(reason)) for position, index, reason in announce.bad]
        while len(bad) > _BAD_ROWS_MOST:  # a folder full of bad files must not make a message too large
            attachment.peer.send(Ready(0, bad[:_BAD_ROWS_MOST]))
            bad = bad[_BAD_ROWS_MOST:]
        now_ns = time.monotonic_ns()
        if attachment.peer.send(Ready(announce.upto, bad)):
            # After the send, because the client waits and the ledger may wake a thread, which needs this interpreter.
            attachment.told.append(Told(now_ns, announce.upto))
            if 0 <= attachment.announced < announce.upto:
                attachment.rows += announce.upto - attachment.announced
                attachment.bad += len(announce.bad)
            attachment.announced = max(attachment.announced, announce.upto)
            self._ledger.announced(announce.cursor, announce.upto, announce.bad)
        else:
            log.warning("job %r has left too many messages unread and must attach again", attachment.attach.job)
            attachment.peer.hang_up()

    def moved(self, move: Move) -> None:
        """Tells a rank of its new ring, whose descriptor it gets."""
        attachment = self.get(move.cursor)
        if attachment is None or not attachment.peer.is_listening:
            return
        ring = self._rings.held[move.lane]
        attachment.moves += 1
        attachment.untaken += 1
        for noted in (attachment.told, attachment.heard):
            noted.clear()  # positions of another stream
        try:
            if attachment.untaken > _UNREAD_RINGS:
                raise OSError(errno.ETOOMANYREFS, f"it has not taken its last {_UNREAD_RINGS} rings")
            given = attachment.peer.give(ring.fd)
            attachment.peer.send(Moved(move.start, ring.layout.to_wire(), given))
        except OSError as e:  # without the ring it cannot continue, but it can come back to its place
            attach = attachment.attach
            log.warning(
                "job %r rank %d cannot be told of its new ring and must attach again: %s",
                attach.job, attach.rank, e.strerror or e,
            )  # fmt: skip
            attachment.peer.hang_up()


def _cut(reason: str) -> str:
    """Cuts a reason to `_REASON_BYTES`. Its end stays, which says more than its beginning."""
    data = reason.encode(errors="replace")
    return reason if len(data) <= _REASON_BYTES else "..." + data[-_REASON_BYTES:].decode(errors="ignore")
