"""Whatever hostile clients send, the daemon continues to serve the honest client, and keeps no resources of theirs."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgpack
import pytest

from prepclient import PrepClient
from prepserver.protocol import zmtp
from prepserver.protocol.codec import MAX_MESSAGE_BYTES, encode
from prepserver.protocol.messages import AskLogs, AskStatus, Bye, Refused, Release, Sync
from tests.support import leaks
from tests.support.clients import OPS, inline_rows, read
from tests.support.honest import SOURCE, SPEC, honest_reader
from tests.support.hostile import Attached, Stranger
from tests.support.server import Server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.fault


@pytest.fixture
def honest(server: Server) -> Iterator[Callable[[], None]]:
    """A client in mid-epoch; calling it reads on. At the end its whole epoch must have been right."""
    with honest_reader(server) as read_on:
        yield read_on
        assert len(server.status()["jobs"]) == 1


def spoilt(stranger: Stranger) -> dict[str, Any]:
    """Questions that look honest, each wrong in one place."""
    good = stranger.attach(SOURCE)
    pipeline = good["pipeline"]
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    return {
        "unknown type": {**good, "t": "Format"},
        "a word of the daemon": {"t": "Ready", "upto": 3},
        "release of one who has nothing": {"t": "Release", "upto": 3},
        "the last word of one who said none": {"t": "Bye", "upto": 3},
        "no type": {k: v for k, v in good.items() if k != "t"},
        "type is a list": {**good, "t": ["Attach"]},
        "missing field": {k: v for k, v in good.items() if k != "seed"},
        "extra field": {**good, "exec": "rm"},
        "seed is text": {**good, "seed": "0"},
        "seed is negative": {**good, "seed": -1},
        "seed is a float": {**good, "seed": 0.5},
        "seed is huge": {**good, "seed": 2**64 - 1},
        "batch of nothing": {**good, "batch_size": 0},
        "batch is true": {**good, "batch_size": True},
        "batch is huge": {**good, "batch_size": 2**62},
        "rank beyond": {**good, "rank": 5, "world_size": 2},
        "no ranks": {**good, "world_size": 0},
        "local ranks elsewhere": {**good, "world_size": 4, "local_ranks": [2, 2]},
        "local ranks beyond": {**good, "world_size": 4, "local_ranks": [0, 9]},
        "protocol of one": {**good, "protocol": [1]},
        "protocol from the future": {**good, "protocol": [77, 99]},
        "shuffle unknown": {**good, "shuffle": "sorted"},
        "not a number of seconds": {**good, "join_wait_s": float("nan")},
        "endless": {**good, "join_wait_s": float("inf")},
        "position alone": {**good, "position": 5},
        "position before its epoch": {**good, "position": 5, "epoch_start": 600},
        "position far beyond its epoch": {**good, "position": 10**9, "epoch_start": 0},
        "position beyond everything": {**good, "position": 2**63, "epoch_start": 2**63},
        "source unknown": {**good, "source": {"source": "pickle", "data": "x"}},
        "source with a relative path": {**good, "source": {"source": "image_folder", "root": "../etc"}},
        "source with a zero byte": {**good, "source": {"source": "image_folder", "root": "/tmp/\0x"}},
        "source that is the whole machine": {**good, "source": {"source": "image_folder", "root": "/proc/self"}},
        "source of nothing": {**good, "source": {**good["source"], "n": 0}},
        "source beyond counting": {**good, "source": {**good["source"], "n": 2**63}},
        "op unknown": {**good, "pipeline": [*pipeline, {"op": "system", "command": "id"}]},
        "op is text": {**good, "pipeline": ["decode"]},
        "ops without end": {**good, "pipeline": pipeline + [pipeline[-1]] * 400},
        "rows of a terabyte": {**good, "pipeline": [pipeline[0], {**pipeline[1], "size": [2**20, 2**20]}]},
        "deep nesting": {**good, "source": {"source": deep}},
        "job name of 60 kB": {**good, "job": "x" * 60_000},
    }


def raw() -> dict[str, bytes]:
    """Things that are no message at all."""
    rng = random.Random(1)
    return {
        "one byte": b"\0",
        "noise": rng.randbytes(300),
        "text": b"GET / HTTP/1.1\r\n\r\n",
        "a number": msgpack.packb(5),
        "a list": msgpack.packb([1, 2]),
        "an array that claims 4 billion": b"\xdd\xff\xff\xff\xff",
        "a map that claims 4 billion": b"\xdf\xff\xff\xff\xff",
        "nested 60000 deep": b"\x91" * 60_000,
        "an extension": msgpack.packb({"t": msgpack.ExtType(5, b"x")}),
        "a timestamp": msgpack.packb({"t": msgpack.Timestamp(1)}),
        "a key twice": b"\x82\xa1t\xa6Attach\xa1t\xa6Attach",
        "number keys": msgpack.packb({1: 2}),
        "broken text": b"\x81\xa1t\xa3\xff\xfe\xfd",
        "bytes behind the end": encode(AskStatus()) + b"\0",
        "cut short": encode(AskStatus())[:-3],
        "as large as may be": b"\xc6" + (MAX_MESSAGE_BYTES - 5).to_bytes(4, "big") + bytes(MAX_MESSAGE_BYTES - 5),
        "too large": bytes(MAX_MESSAGE_BYTES + 1),
        "much too large": bytes(200_000),
    }


def test_each_spoilt_question_is_refused_and_the_connection_ends(server: Server, honest: Callable[[], None]) -> None:
    with Stranger(server) as one:
        names = list(spoilt(one))
    for number, name in enumerate(names):
        with Stranger(server) as stranger:
            stranger.send_map(spoilt(stranger)[name])
            answer = stranger.receive()
            assert isinstance(answer, Refused), (name, answer)
            assert answer.text, name
        if number % 10 == 0:
            honest()
    assert len(server.status()["jobs"]) == 1


def test_noise_is_refused_and_the_connection_ends(server: Server, honest: Callable[[], None]) -> None:
    for name, data in raw().items():
        with Stranger(server) as stranger:
            with contextlib.suppress(ConnectionError):  # it may refuse the beginning before the end is sent
                stranger.send(data)
            answer = stranger.receive()
            assert isinstance(answer, Refused), (name, answer)
            assert answer.code == "protocol", name
    honest()


def nothing_written(end: int) -> bool:
    return os.write(end, b"x") == 0


def test_descriptors_that_are_sent_along_are_closed(server: Server, honest: Callable[[], None]) -> None:
    for _ in range(20):
        read_end, write_end = os.pipe()
        with Stranger(server) as stranger:
            stranger.say(b"")
            assert stranger.said is not None
            socket.send_fds(stranger.said, [zmtp.frame(encode(AskStatus()))], [read_end] * 50)
            socket.send_fds(stranger.sock, [encode(AskStatus())], [read_end] * 50)
            os.close(read_end)
            # Nobody holds the other end: writing says so.
            with pytest.raises(BrokenPipeError):
                wait_until(partial(nothing_written, write_end))
        os.close(write_end)
    honest()
    wait_until(
        lambda: not [link for link in leaks.fds(server.pid) if "pipe" in link], why=lambda: leaks.fds(server.pid)
    )


def test_one_question_per_connection(server: Server, honest: Callable[[], None]) -> None:
    with Stranger(server) as stranger:
        attach = {**stranger.attach(SOURCE), "batch_size": 7}
        stranger.send_map(attach)
        stranger.send_map(attach)
        assert stranger.ended()
    honest()
    wait_until(lambda: len(server.status()["jobs"]) == 1, why=server.log)


def test_silent_and_hasty_strangers_leave_nothing(server: Server, honest: Callable[[], None]) -> None:
    before = server.settled()
    silent = [Stranger(server) for _ in range(50)]
    for _ in range(50):
        with Stranger(server) as hasty:
            hasty.send_map(hasty.attach(SOURCE))  # and gone before the answer
    honest()
    for stranger in silent:
        stranger.close()
    wait_until(lambda: len(server.status()["jobs"]) == 1, why=server.log)
    kinds = ("socket", "anon_inode:[pidfd]")

    def settled() -> bool:
        now = server.look()
        return all(now.fds[kind] == before.fds[kind] for kind in kinds)

    wait_until(settled, why=lambda: f"before {before}\nnow    {server.look()}")


def test_a_stranger_that_never_reads_blocks_nobody(server: Server, honest: Callable[[], None]) -> None:
    with Stranger(server) as stranger:
        stranger.send(encode(AskStatus()))
        honest()
        honest()
        assert len(server.status()["jobs"]) == 1  # others are answered, too


@pytest.mark.parametrize("job", ["../quarantine/x", "/etc/passwd", "none\0", "", "." * 4000])
def test_a_log_that_is_no_job_s_is_refused(server: Server, job: str) -> None:
    with Stranger(server) as stranger:
        stranger.send(encode(AskLogs(job)))
        answer = stranger.receive()
    assert isinstance(answer, Refused)
    assert answer.text.startswith("this daemon has no log of a job")


# -- lines ----------------------------------------------------------------------------------------------


LIES: dict[str, bytes] = {
    "rows that it was never told of": zmtp.frame(encode(Release(10**9))),
    "rows beyond the end of numbers": zmtp.frame(encode(Sync(2**62))),
    "rows before any are ready": zmtp.frame(encode(Release(600))),
    "noise": zmtp.frame(b"\xc1\xc1\xc1"),
    "an empty message": zmtp.frame(b""),
    "another question": zmtp.frame(encode(AskStatus())),
    "a negative position": zmtp.frame(msgpack.packb({"t": "Release", "upto": -5, "wait_ns": 0, "batches": 0})),
    "a position in words": zmtp.frame(msgpack.packb({"t": "Release", "upto": "all", "wait_ns": 0, "batches": 0})),
    "a question of what is given back": zmtp.frame(msgpack.packb({"t": "Release"})),
    "two parts": b"\x01\x01a\x00\x01b",
    "a command": b"\x04\x05\x04PING",
    "a message without an end": b"\x02" + b"\xff" * 8,
    "no ZeroMQ": b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_an_attached_client_that_lies_is_dropped(server: Server, honest: Callable[[], None], lie: bytes) -> None:
    with Attached(server, SOURCE) as liar:
        assert len(server.status()["jobs"]) == 2
        liar.say(lie)
        assert liar.ended()
        honest()
    wait_until(lambda: len(server.status()["jobs"]) == 1, why=server.log)


def test_who_speaks_on_the_lease_is_dropped(server: Server, honest: Callable[[], None]) -> None:
    """It is told why."""
    with Attached(server, SOURCE) as liar:
        assert len(server.status()["jobs"]) == 2
        liar.sock.send(encode(Sync(0)))
        while not isinstance(refused := liar.receive(), Refused):
            pass
        assert "belong on the line" in refused.text
        honest()
    wait_until(lambda: len(server.status()["jobs"]) == 1, why=server.log)


def test_an_attached_client_that_goes_silent_costs_only_its_ring(server: Server, honest: Callable[[], None]) -> None:
    with Attached(server, SOURCE):
        for _ in range(5):
            honest()
        assert len(server.status()["jobs"]) == 2
    wait_until(lambda: len(server.status()["jobs"]) == 1, why=server.log)


def test_floods_of_repeated_releases_and_syncs_do_no_harm(server: Server, honest: Callable[[], None]) -> None:
    with Attached(server, SOURCE) as chatty:
        for number in range(6000):
            chatty.send(encode(Sync(0) if number % 2 else Release(0)))
        honest()
        chatty.sock.send(encode(Bye(0)))
        assert chatty.ended()
    wait_until(lambda: len(server.status()["jobs"]) == 1, why=server.log)


def test_the_daemon_is_whole_after_all_of_it(server: Server) -> None:
    with PrepClient(SOURCE, OPS, fields="dict", runtime_dir=server.runtime_dir, **SPEC) as client:
        assert read(client) == inline_rows(SOURCE, **SPEC)
    assert [worker["restarts"] for worker in server.status()["workers"]] == [0, 0]
