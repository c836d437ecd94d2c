"""The connections on the attach socket, and which one gives way when it is full. Pure: closes nothing itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

SILENCE_S = 10.0
"""A connection is dropped if it asks nothing for this long, or stays open this long after its last message."""


class Connected(Protocol):
    """A connection; see `Peer`."""

    uid: int
    asked: bool
    since_s: float

    def fileno(self) -> int:
        """Its descriptor."""


P = TypeVar("P", bound=Connected)


class Crowded(Exception):
    """There is no room for one more connection; the text names the limit."""


class Peers(Generic[P]):
    """The connections, by descriptor.

    A user other than root and the daemon's own has at most half of the places, so that some stay free for others. A
    connection that has asked nothing gives way to a new one.

    Args:
        most: Most connections.
        own_uid: Uid of the daemon.
    """

    def __init__(self, most: int, own_uid: int) -> None:
        self.most = most
        self._own_uid = own_uid
        self._by_fd: dict[int, P] = {}  # oldest first
        self._silent: dict[int, P] = {}  # have asked nothing or should hang up; oldest first
        self._of_uid: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._by_fd)

    def __iter__(self) -> Iterator[P]:
        return iter(list(self._by_fd.values()))

    def add(self, peer: P) -> None:
        """Adds a connection."""
        self._by_fd[peer.fileno()] = peer
        self._silent[peer.fileno()] = peer
        self._of_uid[peer.uid] += 1

    def asked(self, peer: P) -> None:
        """A peer has asked its question."""
        self._silent.pop(peer.fileno(), None)

    def told(self, peer: P) -> None:
        """A peer was sent its last message and should hang up; it counts as silent again."""
        self._silent[peer.fileno()] = peer

    def remove(self, peer: P) -> None:
        """Removes a connection; call it before closing. Ignores unknown ones."""
        if self._by_fd.pop(peer.fileno(), None) is not None:
            self._silent.pop(peer.fileno(), None)
            self._of_uid[peer.uid] -= 1
            if not self._of_uid[peer.uid]:
                del self._of_uid[peer.uid]

    def in_the_way_of(self, newcomer: P) -> P | None:
        """The connection to drop before `newcomer` is added; None if there is room.

        Raises:
            Crowded: No connection gives way.
        """
        uid = newcomer.uid
        share = self.most if uid in (0, self._own_uid) else max(1, self.most // 2)
        if self._of_uid[uid] >= share:
            silent = next((p for p in self._silent.values() if p.uid == uid), None)
            if silent is None:
                raise Crowded(f"uid {uid} has {share} connections, the most that one user may have: try again later")
            return silent
        if len(self._by_fd) < self.most:
            return None
        if not self._silent:
            raise Crowded(f"the daemon has {self.most} connections, its limit: try again later")
        # Take it from the user with the most silent connections, so that a crowd does not displace others.
        crowd = Counter(p.uid for p in self._silent.values()).most_common(1)[0][0]
        return next(p for p in self._silent.values() if p.uid == crowd)

    def overdue(self, now_s: float) -> list[P]:
        """Connections that have been silent for `SILENCE_S`."""
        found = []
        for peer in self._silent.values():
            if now_s - peer.since_s < SILENCE_S:
                break
            found.append(peer)
        return found
