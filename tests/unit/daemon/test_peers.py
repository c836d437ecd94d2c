"""Who gets a place on the attach socket, and who has to make room."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest

from prepserver.daemon.peers import FIRST_WORD_S, Crowded, Peers

OWN, ALICE, BOB = 500, 1000, 1001
_numbers = itertools.count(3)


@dataclass
class Somebody:
    uid: int
    since_s: float = 0.0
    asked: bool = False
    number: int = field(default_factory=lambda: next(_numbers))

    def fileno(self) -> int:
        return self.number


def crowd(peers: Peers[Somebody], uid: int, count: int, *, ask: bool) -> list[Somebody]:
    come = [Somebody(uid) for _ in range(count)]
    for one in come:
        assert peers.in_the_way_of(one) is None
        peers.add(one)
        if ask:
            peers.asked(one)
    return come


def test_one_user_gets_half_of_the_places_and_is_told_so() -> None:
    peers: Peers[Somebody] = Peers(8, OWN)
    crowd(peers, ALICE, 4, ask=True)
    with pytest.raises(Crowded, match="uid 1000 has 4 connections"):
        peers.in_the_way_of(Somebody(ALICE))
    crowd(peers, BOB, 4, ask=True)
    with pytest.raises(Crowded, match="8 connections, its limit"):
        peers.in_the_way_of(Somebody(OWN))


@pytest.mark.parametrize("uid", [0, OWN])
def test_root_and_the_daemons_user_may_have_all_places(uid: int) -> None:
    peers: Peers[Somebody] = Peers(8, OWN)
    crowd(peers, uid, 8, ask=True)
    assert len(peers) == 8


def test_a_user_with_too_many_silent_ones_loses_the_oldest() -> None:
    peers: Peers[Somebody] = Peers(8, OWN)
    first, *_ = crowd(peers, ALICE, 4, ask=False)
    assert peers.in_the_way_of(Somebody(ALICE)) is first
    assert peers.in_the_way_of(Somebody(BOB)) is None


def test_a_full_house_drops_a_peer_of_the_user_with_most_silent() -> None:
    peers: Peers[Somebody] = Peers(8, OWN)
    crowd(peers, BOB, 2, ask=False)
    first, *_ = crowd(peers, ALICE, 4, ask=False)
    crowd(peers, OWN, 2, ask=True)
    assert peers.in_the_way_of(Somebody(BOB)) is first


def test_whoever_has_left_makes_room() -> None:
    peers: Peers[Somebody] = Peers(2, OWN)
    one, other = crowd(peers, OWN, 2, ask=True)
    peers.remove(one)
    peers.remove(one)
    assert list(peers) == [other]
    assert peers.in_the_way_of(Somebody(BOB)) is None


def test_the_silent_are_overdue_and_those_that_asked_are_not() -> None:
    peers: Peers[Somebody] = Peers(8, OWN)
    for one in (early := Somebody(ALICE, 1.0), asks := Somebody(ALICE, 1.0), late := Somebody(BOB, 5.0)):
        peers.add(one)
    peers.asked(asks)
    assert peers.overdue(1.0 + FIRST_WORD_S) == [early]
    assert peers.overdue(5.0 + FIRST_WORD_S) == [early, late]
