"""The client's end of the lease, with a real socket on the other side."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from prepclient import RandomResizedCrop, SyntheticImages, served, transport
from prepclient.errors import BatchTimeout, NoServer, ServerBusy, ServerGone
from prepclient.feed import ResumePoint, Service
from prepclient.served import ServedFeed
from prepclient.spec import make_spec
from prepclient.transport import ask, ask_status, connect
from prepserver.daemon.attach import Listener
from prepserver.daemon.runtime_dir import Door
from prepserver.memory.segment import create_segment
from prepserver.protocol import places as protocol_places
from prepserver.protocol.layout import RingLayout
from prepserver.protocol.messages import ATTACH_SOCKET, Attach, Ready, Refused, Status, Welcome
from tests.support.images import sample_layout
from tests.support.one_peer import heard, leased, say_welcome
from tests.support.waiting import PATIENCE_S

SPEC = make_spec(
    SyntheticImages(4, size=(20, 20)), [RandomResizedCrop(2)], batch_size=1, shuffle=True, seed=3, drop_last=False,

)  # fmt: skip
LAYOUT = sample_layout(4, (2, 2, 3), "uint8").to_wire()
ATTACH = Attach(
    job="job", source={}, shuffle="full", seed=0, pipeline=[],
    batch_size=1, drop_last=False, rank=0, world_size=1,
)  # fmt: skip
WELCOME = Welcome(
    job_id=1, samples=4, num_classes=0, source_digest="x",
    epoch_start=0, position=0, ahead=0, layout=LAYOUT,
)  # fmt: skip


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """The next descriptors are beyond what select can name."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip(f"at most {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    held = [os.open(os.devnull, os.O_RDONLY)]
    while held[-1] < 1024:
        held.append(os.dup(held[0]))
    yield
    for fd in held:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_descriptor_is_awaited_whatever_number_it_gets(tmp_path: Path, many_descriptors: None) -> None:
    ring = os.memfd_create("ring")
    (connection, answer), peer = leased(tmp_path, WELCOME, ring, lambda: ask(tmp_path, ATTACH, 60.0))
    assert answer == WELCOME
    number = peer.give(ring)
    fd = connection.take(number)
    assert fd > 1024
    assert os.path.sameopenfile(fd, ring)
    assert peer.send(Ready(64))
    assert connection.receive(60.0) == Ready(64)
    peer.close()
    with pytest.raises(ServerGone):
        connection.receive(60.0)
    with pytest.raises(ServerGone):
        connection.take(number + 1)
    for each in (fd, ring):
        os.close(each)
    connection.close()


def test_a_daemon_that_gives_no_line_is_named(tmp_path: Path) -> None:
    with (
        Listener(tmp_path / ATTACH_SOCKET, Door()).sock,
        pytest.raises(BatchTimeout, match=r"descriptor 0 within 0\.0"),
    ):
        ask(tmp_path, ATTACH, 0.05)


def test_a_daemon_whose_queue_is_full_is_named(tmp_path: Path) -> None:
    with Listener(tmp_path / ATTACH_SOCKET, Door()).sock as daemon:
        daemon.listen(0)  # a queue of one
        with connect(tmp_path), pytest.raises(BatchTimeout, match=r"took no connection within 0\.05 s"):
            connect(tmp_path, 0.05)


def test_a_signal_ends_no_wait_for_a_place_in_the_queue(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: over.set())
    main, over = threading.get_ident(), threading.Event()

    def call() -> None:
        while not over.wait(0.05):
            signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=call)
    try:
        with Listener(tmp_path / ATTACH_SOCKET, Door()).sock as daemon:
            daemon.listen(0)  # a queue of one
            thread.start()
            with connect(tmp_path), pytest.raises(BatchTimeout, match=r"took no connection within 0\.5 s"):
                connect(tmp_path, 0.5)
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_daemon_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = []
    opened = threading.Event()
    listener = Listener(tmp_path / ATTACH_SOCKET, Door())
    listener.sock.setblocking(True)

    def serve() -> None:
        peer = listener.accept()
        assert peer is not None
        peer.open(tmp_path / "line.sock")
        peers.append(peer)
        opened.set()

    def connect(runtime_dir: Path, timeout_s: float) -> socket.socket:
        sock = real(runtime_dir, timeout_s)
        assert opened.wait(PATIENCE_S)
        return sock

    real = transport.connect
    monkeypatch.setattr(transport, "connect", connect)
    daemon = threading.Thread(target=serve)
    daemon.start()
    with pytest.raises(BatchTimeout, match=r"did not answer within timeout_s = 0\.3"):
        ask(tmp_path, ATTACH, 0.3)
    daemon.join()
    listener.close()
    peers[0].close()


def test_a_question_has_one_deadline_for_all_of_its_steps(tmp_path: Path) -> None:
    listener = Listener(tmp_path / ATTACH_SOCKET, Door())
    listener.sock.setblocking(True)

    def serve() -> None:
        peer = listener.accept()
        assert peer is not None
        peer.open(tmp_path / "line.sock")
        heard(peer)
        peer.send(Status(2, 7))  # whose descriptor never comes
        assert heard(peer) is None
        peer.close()

    daemon = threading.Thread(target=serve)
    daemon.start()
    with pytest.raises(BatchTimeout, match=r"within (?!10 s)"):
        ask_status(tmp_path, 3.0)
    daemon.join()
    listener.close()


@pytest.mark.parametrize("asked_after", [False, True])
def test_a_busy_daemon_is_asked_again(
    asked_after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It refuses as soon as somebody connects, and hangs up: the question may come before that, or after."""
    listener = Listener(tmp_path / ATTACH_SOCKET, Door())
    listener.sock.setblocking(True)
    ring = create_segment("ring", RingLayout.from_wire(LAYOUT).nbytes)
    refused = threading.Semaphore(0)
    peers = []

    def serve() -> None:
        for _ in range(3):
            peer = listener.accept()
            assert peer is not None
            if not asked_after:
                peer.open(tmp_path / "line.sock")
                heard(peer)
            peer.turn_away(Refused("busy", "the daemon has 7 clients, its limit"))
            peer.close()
            refused.release()
        peer = listener.accept()
        assert peer is not None
        peer.open(tmp_path / "line.sock")
        heard(peer)
        say_welcome(peer, WELCOME, ring)
        peers.append(peer)
        heard(peer)
        peer.close()

    daemon = threading.Thread(target=serve)
    daemon.start()
    real = transport.connect

    def connect(runtime_dir: Path, timeout_s: float) -> socket.socket:
        sock = real(runtime_dir, timeout_s)
        if asked_after:
            refused.acquire(timeout=1.0)  # in vain the last time
        return sock

    monkeypatch.setattr(transport, "connect", connect)
    try:
        feed = ServedFeed(tmp_path, SPEC, ResumePoint(), Service(timeout_s=60.0), print)
        feed.close()
    finally:
        daemon.join()
        listener.close()
        os.close(ring)
        for peer in peers:
            peer.close()
    assert caplog.text.count("7 clients") == 1


def test_a_daemon_that_stays_busy_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(served, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep))
    listener = Listener(tmp_path / ATTACH_SOCKET, Door())
    listener.sock.setblocking(True)
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            peer = listener.accept()
            if peer is not None:
                peer.turn_away(Refused("busy", "the daemon has 7 clients, its limit"))
                peer.close()

    daemon = threading.Thread(target=serve)
    daemon.start()
    try:
        with pytest.raises(ServerBusy, match=r"7 clients, its limit; .*timeout_s = 60"):
            ServedFeed(tmp_path, SPEC, ResumePoint(), Service(timeout_s=60.0), print)
    finally:
        ended.set()
        transport.connect(tmp_path).close()
        daemon.join()
        listener.close()


def test_a_path_that_is_too_long_for_a_socket_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(NoServer, match="too long"):
        connect(tmp_path / ("x" * 120))


@pytest.mark.parametrize("uid", [0, 7])
@pytest.mark.parametrize("is_first", [True, False])
def test_the_command_to_start_a_daemon_works_for_this_user(
    uid: int, is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon need not be told the first usual place: a user who may not take it gets the next one."""
    monkeypatch.delenv("PREPSERVER_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(protocol_places, "SYSTEM_RUNTIME_DIR", os.fspath(tmp_path / "system"))
    place = tmp_path / ("system" if is_first else f"prepserver-{uid}")
    command = "prepserver start" if is_first else f"prepserver start --runtime-dir {place}"
    with pytest.raises(NoServer, match=f"`{command}`"):
        connect(place)
