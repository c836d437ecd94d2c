"""The clients: who connects, what they say, and how a connection ends."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from prepserver.daemon.attach import Listener, Peer
from prepserver.daemon.attachments import Attachment, Attachments
from prepserver.daemon.complaints import Complaints
from prepserver.daemon.control import Control
from prepserver.daemon.driver import Driver
from prepserver.daemon.ledger import Ledger
from prepserver.daemon.peers import FIRST_WORD_S, Crowded, Peers
from prepserver.daemon.poll import Poll
from prepserver.daemon.questions import Question, Questions
from prepserver.protocol.messages import AskStatus, AskStop, Attach, Bye, Fault, Hello, Refused, Release, Sync
from prepserver.protocol.schema import ProtocolError
from prepserver.schedule.actions import Admit, End, Refuse
from prepserver.schedule.events import RankAsks, RankLeft, Released

log = logging.getLogger(__name__)

_LAST_WORDS = 1000
_ACCEPTED_AT_ONCE = 16

P = ParamSpec("P")


def _at_word_of(
    do: Callable[Concatenate[Clients, Peer, P], None],
) -> Callable[Concatenate[Clients, Peer, P], None]:
    """What is done at the word of one peer: an error that nobody foresaw costs this one its connection, others nothing.

    Not so for what nobody asked for, such as a tick or a worker's answer: there it ends the daemon, and so does one in
    letting the peer go.
    """

    @functools.wraps(do)
    def done(clients: Clients, peer: Peer, /, *arguments: P.args, **more: P.kwargs) -> None:
        try:
            do(clients, peer, *arguments, **more)
        except Exception as e:  # noqa: BLE001 - that is what it is for
            clients.fail(peer, e)

    return done


class Clients:
    """See the module.

    Args:
        poll: Tells of what arrives.
        driver: Takes events.
        attachments: Those who are admitted.
        ledger: Where it is written down who was given what.
        most: Connections that there are descriptors for.
    """

    questions: Questions

    def __init__(self, poll: Poll, driver: Driver, attachments: Attachments, ledger: Ledger, most: int) -> None:
        self._poll = poll
        self._driver = driver
        self._attachments = attachments
        self._ledger = ledger
        self._peers: Peers[Peer] = Peers(most, os.getuid())
        self._complaints = Complaints(log)
        self._listener: Listener | None = None
        self._control: Control | None = None

    # -- the sockets --------------------------------------------------------------------------------

    def open(self, listener: Listener, control: Control) -> None:
        """Clients may connect from now on."""
        self._listener = listener
        self._control = self.questions.control = control
        self._poll.watch(listener.fileno(), self._accept)

    def shut_door(self) -> None:
        """Nobody else may connect."""
        if self._listener is not None:
            self._poll.forget(self._listener.fileno())
            self._listener.close()

    def close(self) -> None:
        """Ends all connections."""
        if self._listener is not None:
            self._listener.close()
        for peer in self._peers:
            self.drop(peer)
        if self._control is not None:
            self._control.close()
        self._complaints.close()

    @property
    def are_due(self) -> bool:
        """Whether something may have arrived that no poll will tell of: see `read`."""
        return self._control is not None and self._control.is_due

    def read(self) -> None:
        """Reads the control lines."""
        if self._control is not None and self._control.is_due:
            for received in self._control.receive():
                self._heard(self._attachments[received.cursor].peer, received.message)

    def tick(self, now_s: float) -> None:
        """Deadlines, and questions that wait for memory. To be called several times a second."""
        for question in self.questions.take_short():
            self.ask(question.peer, question)
        self._complaints.tick(now_s)
        for silent in self._peers.overdue(now_s):
            self._drop_silent(silent, f"nothing was asked within {FIRST_WORD_S:g} s")

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(_ACCEPTED_AT_ONCE):
            peer = self._listener.accept()
            if peer is None:
                return
            self._take_in(peer)

    @_at_word_of
    def _take_in(self, peer: Peer) -> None:
        try:
            while (silent := self._peers.in_the_way_of(peer)) is not None:
                self._drop_silent(silent, "others need the place of a client that asks nothing: try again later")
        except Crowded as e:
            self._complaints.warn(peer.uid, "pid %d (uid %d) turned away: %s", peer.pid, peer.uid, e)
            peer.turn_away(str(e))
            return
        self._peers.add(peer)
        self._poll.watch(peer.fileno(), lambda: self._read_peer(peer))
        if peer.pidfd >= 0:
            self._poll.watch(peer.pidfd, lambda: self._died(peer))
        self._read_peer(peer)  # its question is mostly there already

    @_at_word_of
    def _drop_silent(self, peer: Peer, text: str) -> None:
        """Hangs up on a peer that has asked nothing, unless its question has come meanwhile."""
        if peer.has_said_more():
            self._read_peer(peer)
        else:
            peer.send(Refused("busy", text))
            self.drop(peer)

    # -- what they say ------------------------------------------------------------------------------

    @_at_word_of
    def _read_peer(self, peer: Peer) -> None:
        try:
            message = peer.receive()
        except BlockingIOError:
            return
        except ProtocolError as e:
            self._complaints.warn(peer.uid, "pid %d (uid %d) on the attach socket: %s", peer.pid, peer.uid, e)
            peer.send(Refused("protocol", str(e)[:4000]))
            self.drop(peer)
            return
        self._peers.asked(peer)
        match message:
            case Attach():
                self.questions.attach(peer, message)
            case AskStatus():
                self.questions.status(peer)
            case AskStop():
                self.questions.stop(peer)
            case Release() if peer.cursor in self._attachments:
                self._heard(peer, message)
            case Bye(upto) if peer.cursor is not None:
                self._ledger.left(peer.cursor, upto)
                self.drop(peer)
            case None:
                self.drop(peer)
            case _:
                peer.send(Refused("protocol", f"{type(message).__name__} of one who has not attached"))
                self.drop(peer)

    @_at_word_of
    def _died(self, peer: Peer) -> None:
        # Up to its last word, which may be there still; as many as fit a connection. A child of it may talk on.
        for _ in range(_LAST_WORDS):
            if peer.cursor is None or not peer.has_said_more():
                break
            self._read_peer(peer)
        self.drop(peer)

    @_at_word_of
    def ask(self, peer: Peer, question: Question) -> None:
        """The source of a question is listed: the coordinator is asked for a place, if the client is still there."""
        if peer.fileno() >= 0:
            self.questions.ask(question)

    @_at_word_of
    def _heard(self, peer: Peer, message: Any) -> None:
        assert peer.cursor is not None
        attachment = self._attachments[peer.cursor]
        match message:
            case ProtocolError():
                self._broke_protocol(attachment, str(message))
            case Exception():
                raise message
            case Hello():
                attachment.connected = True
                self._driver.happened(RankAsks(attachment.cursor))
            case Release(upto, wait_ns, batches):
                self._driver.happened(Released(attachment.cursor, upto, wait_ns, batches))
                if attachment.is_owed or peer.is_owed:  # it reads again
                    self._driver.happened(RankAsks(attachment.cursor))
                self._ledger.released(attachment.cursor, upto)
            case Sync(upto, wait_ns, batches):
                attachment.connected = True
                self._driver.happened(Released(attachment.cursor, upto, wait_ns, batches))
                self._driver.happened(RankAsks(attachment.cursor, waits=True))
                self._ledger.released(attachment.cursor, upto)
            case _:
                assert isinstance(message, Bye)
                self._ledger.left(attachment.cursor, message.upto)
                self.drop(peer)

    def answer(self, answer: Admit | Refuse | End) -> None:
        """See `Answers`."""
        if not isinstance(answer, End):
            self.questions.answer(answer)
        elif answer.cursor in self._attachments:
            attachment = self._attachments[answer.cursor]
            if answer.code == "protocol":
                self._broke_protocol(attachment, answer.text)
            else:
                attachment.peer.send(Refused(answer.code, answer.text, answer.field))
                self.drop(attachment.peer)

    # -- the ends of connections --------------------------------------------------------------------

    def refuse(self, peer: Peer, code: str, text: str, field: str | None = None) -> None:
        """Ends a question with the reason why not."""
        if peer.fileno() < 0:
            return
        self._complaints.warn(peer.uid, "pid %d (uid %d) refused: %s", peer.pid, peer.uid, text)
        peer.send(Refused(code, text[:4000], field))
        self.drop(peer)

    def fail(self, peer: Peer, error: Exception) -> None:
        """Ends a connection for an error that is ours. One that has attached will come back, to the very same rows."""
        what = f"{type(error).__name__}: {error}"
        self._complaints.error(peer.uid, error, "pid %d (uid %d) loses its connection: %s", peer.pid, peer.uid, what)
        text = f"an error in the daemon, of which its log has more; please report it: {what}"[:4000]
        peer.send(Refused("internal", text))
        self.drop(peer)

    def _broke_protocol(self, attachment: Attachment, text: str) -> None:
        peer = attachment.peer
        self._complaints.warn(peer.uid, "job %r (pid %d): %s", attachment.attach.job, peer.pid, text)
        peer.send(Fault("protocol", text[:4000]))
        self.drop(peer)

    def drop(self, peer: Peer) -> None:
        """Ends a connection, and with it the attachment that it leases."""
        fd = peer.fileno()
        if fd < 0:
            return
        attachment = self._attachments.pop(peer.cursor, None) if peer.cursor is not None else None
        if attachment is not None:
            attach = attachment.attach
            log.info("job %r rank %d (pid %d) is gone", attach.job, attach.rank, peer.pid)
            self._ledger.left(attachment.cursor)
            self._driver.happened(RankLeft(attachment.cursor))
            assert self._control is not None
            self._control.shut(attachment.cursor)
        self._poll.forget(fd)
        if peer.pidfd >= 0:
            self._poll.forget(peer.pidfd)
        self._peers.remove(peer)
        peer.close()
