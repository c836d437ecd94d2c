"""Who gets a place on the attach socket, and who has to make room."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from prepserver.daemon.attach import Peer
from prepserver.daemon.peers import FOR_QUESTIONS, SILENCE_S, Crowded, Peers

OWN, ALICE, BOB = 500, 1000, 1001
Somebody = Callable[..., Peer]


@pytest.fixture
def somebody() -> Iterator[Somebody]:
    """Makes real connections of any user."""
    made: list[Peer] = []

    def connect(uid: int, since_s: float = 0.0) -> Peer:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.close()
        made.append(peer := Peer(ours))
        peer.uid, peer.since_s = uid, since_s
        return peer

    yield connect
    for peer in made:
        peer.close()


def crowd(peers: Peers, somebody: Somebody, uid: int, count: int, *, ask: bool) -> list[Peer]:
    come = [somebody(uid) for _ in range(count)]
    for one in come:
        assert peers.in_the_way_of(one) is None
        peers.add(one)
        if ask:
            one.asked = True
    return come


def test_one_user_gets_half_of_the_places_and_is_told_so(somebody: Somebody) -> None:
    peers = Peers(8, OWN)
    crowd(peers, somebody, ALICE, 4, ask=True)
    with pytest.raises(Crowded, match="uid 1000 has 4 connections"):
        peers.in_the_way_of(somebody(ALICE))
    crowd(peers, somebody, BOB, 4, ask=True)
    with pytest.raises(Crowded, match="8 connections, its limit"):
        peers.in_the_way_of(somebody(1002))


@pytest.mark.parametrize("uid", [0, OWN])
@pytest.mark.parametrize("others", [ALICE, OWN])
def test_a_full_daemon_answers_the_questions_of_its_user(uid: int, others: int, somebody: Somebody) -> None:
    """But takes no further job."""
    peers = Peers(8, OWN)
    crowd(peers, somebody, BOB, 4, ask=True)
    jobs = crowd(peers, somebody, others, 4, ask=True)
    peers.check_job(jobs[-1])
    questions = crowd(peers, somebody, uid, FOR_QUESTIONS, ask=True)
    for each in questions:
        with pytest.raises(Crowded, match="8 connections, its limit"):
            peers.check_job(each)
    with pytest.raises(Crowded, match="8 connections, its limit"):
        peers.in_the_way_of(somebody(uid))


@pytest.mark.parametrize("uid", [0, OWN])
def test_root_and_the_daemons_user_may_have_all_places(uid: int, somebody: Somebody) -> None:
    peers = Peers(8, OWN)
    jobs = crowd(peers, somebody, uid, 8, ask=True)
    peers.check_job(jobs[-1])
    (more,) = crowd(peers, somebody, uid, 1, ask=True)
    with pytest.raises(Crowded, match=f"uid {uid} has 8 connections"):
        peers.check_job(more)


def test_a_user_with_too_many_silent_ones_loses_the_oldest(somebody: Somebody) -> None:
    peers = Peers(8, OWN)
    first, *_ = crowd(peers, somebody, ALICE, 4, ask=False)
    assert peers.in_the_way_of(somebody(ALICE)) is first
    assert peers.in_the_way_of(somebody(BOB)) is None


def test_a_full_house_drops_a_peer_of_the_user_with_most_silent(somebody: Somebody) -> None:
    peers = Peers(8, OWN)
    crowd(peers, somebody, BOB, 2, ask=False)
    first, *_ = crowd(peers, somebody, ALICE, 4, ask=False)
    crowd(peers, somebody, OWN, 2, ask=True)
    assert peers.in_the_way_of(somebody(BOB)) is first


def test_whoever_has_left_makes_room(somebody: Somebody) -> None:
    peers = Peers(2, OWN)
    one, other = crowd(peers, somebody, OWN, 2, ask=True)
    peers.remove(one)
    peers.remove(one)
    assert list(peers) == [other]
    assert peers.in_the_way_of(somebody(BOB)) is None


def test_the_silent_are_overdue_and_those_that_asked_are_not(somebody: Somebody) -> None:
    peers = Peers(8, OWN)
    for one in (early := somebody(ALICE, 1.0), asks := somebody(ALICE, 1.0), late := somebody(BOB, 5.0)):
        peers.add(one)
    asks.asked = True
    assert peers.overdue(1.0 + SILENCE_S) == [early]
    assert peers.overdue(5.0 + SILENCE_S) == [early, late]
