"""The clients: accepts their connections, handles their messages, and ends their connections."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from prepserver.daemon import awake
from prepserver.daemon.attach import NO_DESCRIPTOR, OUT_OF_DESCRIPTORS, Listener, Peer
from prepserver.daemon.attachments import Attachments
from prepserver.daemon.complaints import Complaints
from prepserver.daemon.driver import Driver
from prepserver.daemon.ledger import Ledger
from prepserver.daemon.peers import SILENCE_S, Crowded, Peers
from prepserver.daemon.poll import Poll
from prepserver.protocol import messages
from prepserver.protocol.codec import MAX_MESSAGE_BYTES, decode
from prepserver.protocol.schema import ProtocolError
from prepserver.protocol.versions import greeting, mismatch
from prepserver.schedule.actions import End
from prepserver.schedule.events import RankAsks, RankLeft, Released

log = logging.getLogger(__name__)

_LAST_MESSAGES = 1000  # most messages that are read from a client that has ended
_ACCEPTED_AT_ONCE = 16
_QUESTIONS_S = 0.02  # how long questions may keep the loop from everything else; the last one may take longer

P = ParamSpec("P")

AnyQuestion = messages.Attach | messages.AskStatus | messages.AskStop | messages.AskLogs


def _bye(said: bytes) -> messages.Bye | None:
    """The Bye with which a client ended its lease; None if it is another message."""
    with contextlib.suppress(ProtocolError):
        message = decode(said, messages.TO_LEASE)
        return message if isinstance(message, messages.Bye) else None
    return None


def _guarded(do: Callable[Concatenate[Clients, Peer, P], None]) -> Callable[Concatenate[Clients, Peer, P], None]:
    """On an unforeseen error in the handling of a peer, ends only that peer's connection.

    An unforeseen error elsewhere, such as in a tick, in a worker's answer or in `fail` itself, ends the daemon.
    """

    @functools.wraps(do)
    def done(clients: Clients, peer: Peer, /, *arguments: P.args, **more: P.kwargs) -> None:
        try:
            do(clients, peer, *arguments, **more)
        except Exception as e:  # noqa: BLE001 - its purpose
            clients.fail(peer, e)

    return done


@dataclass(slots=True, eq=False)
class Clients:
    """The connected clients, and the listener that accepts new ones."""

    poll: Poll
    driver: Driver
    attachments: Attachments
    ledger: Ledger
    peers: Peers
    line_socket: Path  # where a line's socket is while the line is made
    _ask: Callable[[Peer, AnyQuestion], None] = field(init=False)
    _complaints: Complaints = field(default_factory=lambda: Complaints(log), init=False)
    _listener: Listener | None = field(default=None, init=False)

    # -- the sockets --------------------------------------------------------------------------------

    def open(self, listener: Listener, ask: Callable[[Peer, AnyQuestion], None]) -> None:
        """Accepts connections from now on; `ask` handles the one question of each client."""
        self._listener, self._ask = listener, ask
        self.poll.watch(listener.fileno(), self._accept)

    def stop_listening(self) -> None:
        """Accepts no more connections."""
        if self._listener is not None:
            self.poll.forget(self._listener.fileno())
            self._listener.close()

    def close(self) -> None:
        """Ends all connections."""
        if self._listener is not None:
            self._listener.close()
        for peer in self.peers:
            self.drop(peer)
            self._close(peer)
        self._complaints.close()

    def tick(self, now_s: float) -> None:
        """Handles deadlines; call it several times a second."""
        self._complaints.tick(now_s)
        for silent in self.peers.overdue(now_s):
            self._drop_silent(silent, f"no question arrived within {SILENCE_S:g} s")
        for peer in self.peers:
            if peer.is_dropped:
                self.drop(peer)
            self._flush(peer)

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(_ACCEPTED_AT_ONCE):
            peer = self._listener.accept()
            if peer is None:
                return
            self._add_peer(peer)

    @_guarded
    def _add_peer(self, peer: Peer) -> None:
        try:
            while (silent := self.peers.in_the_way_of(peer)) is not None:
                self._drop_silent(silent, "others need the place of a client that asks nothing: try again later")
            self.peers.add(peer)
        except Crowded as e:
            self._complaints.warn(peer.uid, "pid %d (uid %d) turned away: %s", peer.pid, peer.uid, e)
            peer.turn_away(messages.Refused("busy", str(e)))
            peer.close()
            return
        self.poll.watch(peer.fileno(), lambda: self._read_lease(peer))
        if peer.pidfd >= 0:
            self.poll.watch(peer.pidfd, lambda: self._ended(peer))

    @_guarded
    def _drop_silent(self, peer: Peer, text: str) -> None:
        """Drops a peer that has asked nothing (unless its question has just arrived), or that should have hung up."""
        if not (peer.is_told or peer.is_late) and peer.line is not None and peer.line.has_more():
            peer.is_late = True
            self._queue(peer)
            return
        if not peer.asked:
            peer.turn_away(messages.Refused("busy", text))
        self.drop(peer)

    # -- messages -----------------------------------------------------------------------------------

    def read_questions(self) -> bool:
        """Reads some questions, of each user in turn; returns whether others wait. Call it again and again.

        One takes up to 0.2 s, and a user may ask thousands at once. Meanwhile jobs run on, and other users are heard.
        """
        until_s = time.monotonic() + _QUESTIONS_S
        while (peer := self.peers.next_queued()) is not None:
            if peer.line is not None:  # else it was dropped
                self.poll.watch(peer.line.fileno(), functools.partial(self._line_ready, peer))
                self._read_line(peer)
            if time.monotonic() >= until_s:
                break
        return self.peers.has_queued

    def _line_ready(self, peer: Peer) -> None:
        if peer.asked:
            self._read_line(peer)
        else:
            self._queue(peer)

    def _queue(self, peer: Peer) -> None:
        if not peer.is_queued and peer.line is not None:
            self.poll.forget(peer.line.fileno())
            self.peers.queue(peer)

    @_guarded
    def _read_line(self, peer: Peer) -> None:
        assert peer.line is not None
        try:
            message = peer.line.receive()
            if message is None:
                self.poll.forget(peer.line.fileno())
                self._hang_up(peer)
            else:
                self._hear(peer, message)
        except BlockingIOError:
            pass
        except ProtocolError as e:
            self._broke_protocol(peer, peer.mismatch or str(e))

    def _hear(self, peer: Peer, message: Any) -> None:
        """Handles a message; raises `ProtocolError` if it is not allowed in this state."""
        match message:
            case messages.Attach() | messages.AskStatus() | messages.AskStop() | messages.AskLogs() if not peer.asked:
                peer.asked = True
                self._ask(peer, message)
            case messages.Release() | messages.Sync() if peer.cursor is not None:
                self._note_progress(peer, peer.cursor, message)
            case _:
                state = "has not attached" if peer.cursor is None else "has attached"
                raise ProtocolError(f"{type(message).__name__} from a client that {state}: one question per connection")

    def _note_progress(self, peer: Peer, cursor: int, message: messages.Release | messages.Sync) -> None:
        if (attachment := self.attachments.get(cursor)) is not None:
            attachment.untaken = 0
            if isinstance(message, messages.Release):
                attachment.note_release(message)
        self.driver.happened(Released(cursor, message.upto, message.wait_ns, message.batches))
        if isinstance(message, messages.Sync):
            self.driver.happened(RankAsks(cursor, reads=peer.line is not None and not peer.line.is_behind))
        self.ledger.released(cursor, message.upto)

    @_guarded
    def _read_lease(self, peer: Peer) -> None:
        try:
            said = peer.sock.recv(MAX_MESSAGE_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if (peer.cursor is not None or peer.is_told) and (bye := _bye(said)) is not None:
            if peer.cursor is not None:  # else its attachment was ended from here
                self.ledger.left(peer.cursor, bye.upto)
            self.drop(peer)
            return
        if said:
            try:
                if peer.line is not None:
                    raise ProtocolError("messages belong on the line, not on the attach socket")
                self._greet(peer, greeting(said))
                return
            except ProtocolError as e:
                self._complaints.warn(peer.uid, "pid %d (uid %d) on the attach socket: %s", peer.pid, peer.uid, e)
                peer.turn_away(messages.Refused("protocol", str(e)[:4000]))
        self._ended(peer)

    def _greet(self, peer: Peer, hello: messages.Hello) -> None:
        peer.mismatch = mismatch(hello)
        try:
            peer.open(self.line_socket)
        except (BrokenPipeError, ConnectionResetError):  # it gave up while it waited for this daemon to start
            self.drop(peer)
            return
        except OSError as e:
            text = f"the daemon cannot open a line to this client: {e.strerror}. Try again later"
            self._complaints.warn(peer.uid, "pid %d (uid %d) turned away: %s", peer.pid, peer.uid, text)
            peer.turn_away(OUT_OF_DESCRIPTORS if e.errno in NO_DESCRIPTOR else messages.Refused("busy", text))
            self.drop(peer)
            return
        assert peer.line is not None
        self.poll.watch(peer.line.fileno(), functools.partial(self._line_ready, peer))

    @_guarded
    def _ended(self, peer: Peer) -> None:
        # Its last messages may still be unread. The bound is for a forked child of the client that keeps sending.
        for _ in range(_LAST_MESSAGES):
            if peer.cursor is None or peer.line is None or peer.is_told or not peer.line.has_more():
                break
            self._read_line(peer)
        self.drop(peer)

    @_guarded
    def _flush(self, peer: Peer) -> None:
        if peer.line is not None and not peer.line.flush():
            self._hang_up(peer)

    @_guarded
    def on_behalf_of(self, _peer: Peer, do: Callable[[], None]) -> None:
        """Does something for a peer; an unforeseen error in it ends that peer's connection, and nothing else."""
        do()

    def end_attachment(self, end: End) -> None:
        """Ends an attachment, as the coordinator has decided."""
        attachment = self.attachments.get(end.cursor)
        if attachment is None:
            return
        if end.code == "protocol":
            self._broke_protocol(attachment.peer, end.text)
        else:
            self.end(attachment.peer, messages.Refused(end.code, end.text, end.field))
        self._leave(attachment.peer)
        attachment.peer.since_s = awake.now_s()

    # -- the ends of connections --------------------------------------------------------------------

    def refuse(self, peer: Peer, code: str, text: str, field: str | None = None) -> None:
        """Refuses a question."""
        if peer.is_listening:
            self._complaints.warn(peer.uid, "pid %d (uid %d) refused: %s", peer.pid, peer.uid, text)
            self.end(peer, messages.Refused(code, text[:4000], field))

    def fail(self, peer: Peer, error: Exception) -> None:
        """Ends a connection because of a bug in the daemon; an attached client comes back and gets the same rows."""
        what = f"{type(error).__name__}: {error}"
        self._complaints.warn(peer.uid, "pid %d (uid %d) loses its connection: %s", peer.pid, peer.uid, what, bug=error)
        text = f"an error in the daemon (its log has more); please report it: {what}"[:4000]
        self.end(peer, messages.Refused("internal", text))

    def _broke_protocol(self, peer: Peer, text: str) -> None:
        self._complaints.warn(peer.uid, "pid %d (uid %d) breaks the protocol: %s", peer.pid, peer.uid, text)
        self.end(peer, messages.Refused("protocol" if peer.cursor is None else "violation", text[:4000]))

    def end(self, peer: Peer, last: messages.Refused | messages.Status | messages.Stopping | messages.Logs) -> None:
        """Sends a peer its last message. It should hang up then; one that is not attached is dropped after a while."""
        if not peer.asked and isinstance(last, messages.Refused):
            peer.turn_away(last)
        if peer.line is not None:
            self.poll.forget(peer.line.fileno())
        if peer.line is None or not peer.asked or not peer.is_listening or not peer.send(last):
            self._hang_up(peer)
            return
        peer.is_told = True
        peer.since_s = awake.now_s()

    def _hang_up(self, peer: Peer) -> None:
        """Ends a connection; an attached client keeps its rows, which it may be reading, until it hangs up, too."""
        if peer.cursor is None:
            self.drop(peer)
        else:
            peer.hang_up()

    def _leave(self, peer: Peer) -> None:
        cursor, peer.cursor = peer.cursor, None
        attachment = self.attachments.pop(cursor, None) if cursor is not None else None
        if attachment is not None:
            attach = attachment.attach
            log.info("job %r rank %d (pid %d) is gone", attach.job, attach.rank, peer.pid)
            self.ledger.left(attachment.cursor)
            self.driver.happened(RankLeft(attachment.cursor))

    def drop(self, peer: Peer) -> None:
        """Ends a connection, and with it its attachment.

        It keeps its place while the peer leaves descriptors unread, so that nobody can leave any number.
        """
        if peer.fileno() < 0:
            return
        if not peer.is_dropped:
            self._leave(peer)
            for fd in (peer.fileno(), peer.pidfd, -1 if peer.line is None else peer.line.fileno()):
                self.poll.forget(fd)
            peer.drop()
        if not peer.leaves_descriptors:
            self._close(peer)

    def _close(self, peer: Peer) -> None:
        self.peers.remove(peer)
        peer.close()
