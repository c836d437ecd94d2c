"""Who is connected to the attach socket, and who has to go when it is full. Pure bookkeeping: closes nothing itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

SILENCE_S = 10.0
"""Whoever has asked nothing for so long is hung up on, and whoever was told the last word so long ago."""


class Connected(Protocol):
    """What is known of a connection; see `Peer`."""

    uid: int
    asked: bool
    since_s: float

    def fileno(self) -> int:
        """Its number."""


P = TypeVar("P", bound=Connected)


class Crowded(Exception):
    """There is no room for one more; the text says for whom, and what the limit is."""


class Peers(Generic[P]):
    """The connections, by descriptor.

    A user other than root and the daemon's own has at most half of the places, so that others always find some.
    Whoever has asked nothing gives way to newcomers.

    Args:
        most: Connections in all.
        own_uid: The daemon's.
    """

    def __init__(self, most: int, own_uid: int) -> None:
        self.most = most
        self._own_uid = own_uid
        self._by_fd: dict[int, P] = {}  # oldest first
        self._silent: dict[int, P] = {}  # those that have asked nothing or are to hang up, likewise
        self._of_uid: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._by_fd)

    def __iter__(self) -> Iterator[P]:
        return iter(list(self._by_fd.values()))

    def add(self, peer: P) -> None:
        """One more."""
        self._by_fd[peer.fileno()] = peer
        self._silent[peer.fileno()] = peer
        self._of_uid[peer.uid] += 1

    def asked(self, peer: P) -> None:
        """A peer has said its first word."""
        self._silent.pop(peer.fileno(), None)

    def told(self, peer: P) -> None:
        """A peer was told the last word, and is to hang up: as if it had asked nothing."""
        self._silent[peer.fileno()] = peer

    def remove(self, peer: P) -> None:
        """One less; before it is closed. An unknown one is ignored."""
        if self._by_fd.pop(peer.fileno(), None) is not None:
            self._silent.pop(peer.fileno(), None)
            self._of_uid[peer.uid] -= 1
            if not self._of_uid[peer.uid]:
                del self._of_uid[peer.uid]

    def in_the_way_of(self, newcomer: P) -> P | None:
        """Who must be hung up on before `newcomer` is added, if anybody.

        Raises:
            Crowded: Nobody can be.
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
        # Of the user who has most: others do not lose their place to a crowd while their question is on its way.
        crowd = Counter(p.uid for p in self._silent.values()).most_common(1)[0][0]
        return next(p for p in self._silent.values() if p.uid == crowd)

    def overdue(self, now_s: float) -> list[P]:
        """Those that should have asked something by now."""
        found = []
        for peer in self._silent.values():
            if now_s - peer.since_s < SILENCE_S:
                break
            found.append(peer)
        return found
