"""Ranks that are attached: the connection of each, and what it was told over it.

Which rows a rank reads is not known here; that is the coordinator's fact. What is known is whether the client listens,
and whether something found no room on its connection.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from prepserver.daemon.attach import Peer
from prepserver.daemon.ledger import Ledger
from prepserver.daemon.rings import Rings
from prepserver.protocol.messages import Attach, Moved, Ready
from prepserver.schedule.actions import Announce, Move

log = logging.getLogger(__name__)

_BAD_ROWS_MOST = 1000  # in one announcement: 64 of them with a reason, 48 KiB in all
_REASON_BYTES = 400


@dataclass(slots=True)
class Attachment:
    """One rank of a job, attached.

    Attributes:
        cursor: The coordinator's number for it.
        peer: Its lease.
        attach: What it asked for.
        connected: Whether it has said Hello on its control line.
        is_owed: Whether an announcement found no room on its connection: then everything is to be said again.
        moves: How often it was told of another ring.
        since_s: When it attached, monotonic.
    """

    cursor: int
    peer: Peer
    attach: Attach
    connected: bool = False
    is_owed: bool = False
    moves: int = 0
    since_s: float = field(default_factory=time.monotonic)


class Attachments(dict[int, Attachment]):
    """All of them, by cursor.

    Args:
        rings: Whose descriptors are sent.
        ledger: Where announcements are written down.
        repeat: What a rank was told last.
    """

    def __init__(self, rings: Rings, ledger: Ledger, repeat: Callable[[int], Announce]) -> None:
        super().__init__()
        self._rings = rings
        self._ledger = ledger
        self._repeat = repeat

    def announce(self, announce: Announce) -> None:
        """Tells a rank of its rows."""
        attachment = self.get(announce.cursor)
        if attachment is None or not attachment.connected:
            return
        if attachment.moves != announce.moves:
            # An error came between what was decided and its doing. The old ring's rows are others now.
            log.error("job %r was not told of its new ring, and must attach anew", attachment.attach.job)
            attachment.peer.hang_up()
            return
        if attachment.is_owed:  # something was lost on the way, and this may not hold it
            announce = self._repeat(announce.cursor)
            if announce.moves != attachment.moves:
                return  # it is about to be told of a move, and then of everything
        # ORDER: what counts a move comes after it.
        attachment.is_owed = not (attachment.peer.send_kept() and _tell(attachment, announce))
        if not attachment.is_owed:
            # The client waits, the log's reader does not: it comes second, as its thread wants this interpreter.
            self._ledger.announced(announce.cursor, announce.upto, announce.bad)

    def moved(self, move: Move) -> None:
        """A rank goes on in another ring: its client is told, and gets the descriptor."""
        attachment = self.get(move.cursor)
        if attachment is None:
            return
        ring = self._rings.held[move.lane]
        attachment.moves += 1
        try:
            attachment.peer.send_or_keep(Moved(move.start, ring.layout.to_wire()), ring.fd)
        except OSError as e:  # it can come back to its place, and not go on without its rows
            attach = attachment.attach
            log.warning(
                "job %r rank %d cannot be told of its new ring and must attach anew: %s", attach.job, attach.rank, e
            )
            attachment.peer.hang_up()

    def hang_up(self, cursor: int) -> None:
        """Ends the connection of a rank: it attaches anew."""
        if cursor in self:
            self[cursor].peer.hang_up()


def _tell(attachment: Attachment, announce: Announce) -> bool:
    """The short way: from this process to that one, with no thread of libzmq's to be woken on either side.

    Returns:
        False where the client has not read for so long that its connection is full. Nothing is kept for it: it is
        told everything when it reads again.
    """
    bad = [(position, index, _cut(reason)) for position, index, reason in announce.bad]
    while len(bad) > _BAD_ROWS_MOST:  # a folder full of bad files must not make a message too large
        if not attachment.peer.send(Ready(0, bad[:_BAD_ROWS_MOST], attachment.moves)):
            return False
        bad = bad[_BAD_ROWS_MOST:]
    return attachment.peer.send(Ready(announce.upto, bad, attachment.moves))


def _cut(reason: str) -> str:
    """A reason as an announcement carries it: its size counts in bytes, its end says more than its beginning."""
    data = reason.encode(errors="replace")
    return reason if len(data) <= _REASON_BYTES else "..." + data[-_REASON_BYTES:].decode(errors="ignore")
