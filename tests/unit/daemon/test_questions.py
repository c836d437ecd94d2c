"""Questions about the daemon, over real connections."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from prepserver.daemon import clients
from prepserver.daemon.ask import ask
from prepserver.daemon.attach import Listener, Peer
from prepserver.daemon.attachments import Attachments
from prepserver.daemon.clients import Clients
from prepserver.daemon.driver import Driver
from prepserver.daemon.ledger import Ledger
from prepserver.daemon.peers import Peers
from prepserver.daemon.poll import Poll
from prepserver.daemon.quarantine import Quarantine
from prepserver.daemon.questions import Life, Questions
from prepserver.daemon.rings import Rings
from prepserver.daemon.runtime_dir import Door
from prepserver.order import make_order
from prepserver.protocol.codec import encode
from prepserver.protocol.messages import ATTACH_SOCKET, AskStatus, Refused
from prepserver.schedule.coordinator import Coordinator
from tests.support.hostile import Stranger
from tests.support.waiting import PATIENCE_S

STATE = {"text": "x" * 10_000}


class Desk:
    """A daemon's end of its connections, without workers and jobs."""

    def __init__(self, runtime_dir: Path) -> None:
        self.runtime_dir = runtime_dir
        self.attach_socket = runtime_dir / ATTACH_SOCKET
        self.poll = Poll()
        driver = Driver(Coordinator(lambda attach, samples: make_order(attach.shuffle, samples, 0), workers=1))
        ledger = Ledger(runtime_dir / "audit")
        attachments = Attachments(Rings(1 << 20), ledger)
        peers = Peers(4, os.getuid())
        self.clients = Clients(self.poll, driver, attachments, ledger, peers, runtime_dir / "line.sock")
        nobody = cast(Any, None)
        questions = Questions(
            cast(Life, self), driver, self.clients, attachments, nobody, nobody, nobody, nobody,
            Quarantine(runtime_dir / "quarantine"), ledger,
        )  # fmt: skip
        self.clients.open(Listener(self.attach_socket, Door()), questions.ask)

    def snapshot(self, _since_ns: int | None) -> dict[str, Any]:
        return STATE

    def asked(self, question: AskStatus) -> Any:
        """The answer that a process gets."""
        with ThreadPoolExecutor(1) as other:
            answer = other.submit(ask, self.attach_socket, question, PATIENCE_S)
            while not answer.done():
                self.poll.run_once(0.01)
                self.clients.read_questions()
            return answer.result()


@pytest.fixture
def desk(short_path: Path) -> Iterator[Desk]:
    made = Desk(short_path)
    yield made
    made.clients.close()
    made.poll.close()


def test_the_state_is_told_whole(desk: Desk) -> None:
    assert desk.asked(AskStatus()) == STATE


def test_a_limit_on_the_size_of_files_is_told_to_who_asks(desk: Desk) -> None:
    """The kernel would write a part of the state."""
    with _files_of_at_most(4096):
        answer = desk.asked(AskStatus())
    assert isinstance(answer, Refused)
    assert answer.code == "busy"
    assert "limit on the size of files (ulimit -f" in answer.text
    assert desk.asked(AskStatus()) == STATE


@contextlib.contextmanager
def _files_of_at_most(nbytes: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_many_questions_of_one_user_wait_for_those_of_others(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_QUESTIONS_S", 0.0)
    asked: list[int] = []
    monkeypatch.setattr(desk.clients, "_ask", lambda peer, _question: asked.append(peer.uid))
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(Stranger(cast(Any, desk))) for _ in range(4)]
        peers: list[Peer] = []
        while not all(peer.line for peer in peers) or len(peers) < 4:
            desk.poll.run_once(0.01)
            peers = list(desk.clients.peers)
        for uid, peer, stranger in zip([1, 1, 1, 2], peers, strangers, strict=True):
            peer.uid = uid
            stranger.send(encode(AskStatus()))
        while not all(peer.is_queued for peer in peers):
            desk.poll.run_once(0.01)
        while desk.clients.read_questions():
            pass
    assert asked == [1, 2, 1, 1]
