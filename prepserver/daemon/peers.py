"""The connections on the attach socket: which gives way when there are too many, and which is heard next. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator

from prepserver.daemon.attach import Peer

SILENCE_S = 10.0
"""A connection is dropped if it asks nothing for this long, or is still open this long after its last message."""


FOR_QUESTIONS = 4
"""Further connections of root and of the daemon's own user, for questions such as `prepserver status` and
`prepserver stop`: they are needed most when jobs have taken all others."""


class Crowded(Exception):
    """There is no room for one more connection; the text names the limit."""


class Peers:
    """The connections, by descriptor.

    A user other than root and the daemon's own has at most half of the places, so that some stay free for others. A
    connection that has asked nothing gives way to a new one.
    """

    def __init__(self, most: int, own_uid: int) -> None:
        self.most = most
        self._own_uid = own_uid
        self._by_fd: dict[int, Peer] = {}  # oldest first
        self._queued: dict[int, deque[Peer]] = {}  # by uid: those that have said something and asked nothing yet

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._by_fd.values()))

    def add(self, peer: Peer) -> None:
        """Adds a connection."""
        self._by_fd[peer.fileno()] = peer

    def remove(self, peer: Peer) -> None:
        """Removes a connection; call it before closing. Ignores unknown ones."""
        self._by_fd.pop(peer.fileno(), None)

    def in_the_way_of(self, newcomer: Peer) -> Peer | None:
        """The connection to drop before `newcomer` is added; None if there is room.

        Raises:
            Crowded: No connection gives way.
        """
        uid, more = newcomer.uid, FOR_QUESTIONS if self._is_trusted(newcomer) else 0
        if self._count_of(uid) >= self._share(newcomer) + more:
            silent = next((peer for peer in self._silent() if peer.uid == uid), None)
            if silent is None:
                raise self._crowded_by(newcomer)
            return silent
        if len(self._by_fd) < self.most + more:
            return None
        if not (every := self._silent()):
            raise self._crowded()
        # The user with the most silent connections loses one, so that a crowd does not displace others.
        crowd = Counter(peer.uid for peer in every).most_common(1)[0][0]
        return next(peer for peer in every if peer.uid == crowd)

    @property
    def has_queued(self) -> bool:
        """Whether something that a connection has said waits to be read."""
        return bool(self._queued)

    def queue(self, peer: Peer) -> None:
        """Notes that a connection has said something, which `next_queued` lets be read in its turn."""
        peer.is_queued = True
        self._queued.setdefault(peer.uid, deque()).append(peer)

    def next_queued(self) -> Peer | None:
        """The connection to read from next, which may have been dropped meanwhile: users take turns."""
        for uid, waiting in self._queued.items():
            peer = waiting.popleft()
            del self._queued[uid]
            if waiting:
                self._queued[uid] = waiting  # behind the others
            peer.is_queued = False
            return peer
        return None

    def check_job(self, peer: Peer) -> None:
        """Checks that one of the connections may stay for a job.

        Raises:
            Crowded: It is one of those for questions.
        """
        if self._count_of(peer.uid) > self._share(peer):
            raise self._crowded_by(peer)
        if len(self._by_fd) > self.most:
            raise self._crowded()

    def overdue(self, now_s: float) -> list[Peer]:
        """Connections that have been silent for `SILENCE_S`."""
        return [peer for peer in self._silent() if now_s - peer.since_s >= SILENCE_S]

    def _is_trusted(self, peer: Peer) -> bool:
        return peer.uid in (0, self._own_uid)

    def _share(self, peer: Peer) -> int:
        return self.most if self._is_trusted(peer) else max(1, self.most // 2)

    def _count_of(self, uid: int) -> int:
        return sum(peer.uid == uid for peer in self._by_fd.values())

    def _crowded_by(self, peer: Peer) -> Crowded:
        share = self._share(peer)
        return Crowded(f"uid {peer.uid} has {share} connections, the most that one user may have: try again later")

    def _crowded(self) -> Crowded:
        return Crowded(f"the daemon has {self.most} connections, its limit: try again later")

    def _silent(self) -> list[Peer]:
        """The silent connections, the longest silent first."""
        return sorted((peer for peer in self._by_fd.values() if peer.is_silent), key=lambda peer: peer.since_s)
