"""What is decided is done, with real memory and real connections, while jobs join, part, and are refused."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from prepclient import RandomResizedCrop, SyntheticImages
from prepserver.daemon.access import Access
from prepserver.daemon.attach import Peer
from prepserver.daemon.attachments import Attachment, Attachments
from prepserver.daemon.caches import Caches
from prepserver.daemon.driver import Driver
from prepserver.daemon.executor import Executor, setup
from prepserver.daemon.ledger import Ledger
from prepserver.daemon.line import Line
from prepserver.daemon.pool import WorkerPool
from prepserver.daemon.quarantine import Quarantine
from prepserver.daemon.rings import Rings
from prepserver.order import make_order
from prepserver.pipeline.caching import CacheSpec
from prepserver.pipeline.pipeline import Pipeline
from prepserver.protocol import work
from prepserver.protocol.codec import decode, encode
from prepserver.protocol.messages import TO_DAEMON, Attach
from prepserver.schedule.actions import Admit, Announce, DropRing, End, MakeRing, Move, Refuse
from prepserver.schedule.asked import Refusal, check
from prepserver.schedule.coordinator import Coordinator
from prepserver.schedule.events import (
    ChunkMade,
    Limits,
    RankAttaches,
    RankLeft,
    Released,
    RingMade,
    Tick,
    WorkerUp,
)
from prepserver.schedule.records import Took
from tests.support.consistency import validate

N = 4000
BATCH = 16
MS = 10**6
NOW_S = 1000.0
HELD_S = 130.0  # longer than a place is kept for a rank

ATTACH = Attach(
    "first", SyntheticImages(N, 8).to_wire(), "full", 0,
    Pipeline.from_ops([RandomResizedCrop(8)], 1).to_wire(), BATCH, drop_last=False, rank=0, world_size=1,
    join_wait_s=1e4, lag="detach",
)  # fmt: skip
LATE = dataclasses.replace(ATTACH, job="late", epoch=1, batch_size=BATCH // 2, world_size=2)


class Pool:
    """Workers that take what they are told."""

    def __init__(self) -> None:
        self.given: list[tuple[int, work.Fill]] = []
        self.made: list[work.Fill] = []
        self.told: list[Any] = []

    def send(self, worker: int, message: work.Fill) -> None:
        self.given.append((worker, message))

    def broadcast(self, message: Any, _fds: Sequence[int]) -> None:
        self.told.append(message)

    def at_sample(self, _index: int) -> list[tuple[int, int]]:
        return []


class Room:
    """A daemon without its processes: chunks are made at once, clients release as they are told."""

    def __init__(self, home: Path) -> None:
        self.coordinator = Coordinator(lambda attach, samples: make_order(attach.shuffle, samples, 0), workers=2)
        self.table = self.coordinator.table
        self.rings = Rings(1 << 30)
        self.ledger = Ledger(home / "audit")
        self.attachments = Attachments(self.rings, self.ledger)
        self.now_s = NOW_S
        self.caches = Caches(1 << 30, 0, (), lambda: self.now_s)
        self.driver = Driver(self.coordinator, lambda: self.now_s)
        self.pool = Pool()
        pool, clients_and_questions = cast(WorkerPool, self.pool), cast(Any, self)
        self.driver.carry_out = Executor(
            self.coordinator, self.rings, self.caches, self.attachments, Quarantine(home / "bad"), Access(os.getuid()),
            pool, clients_and_questions, clients_and_questions,
        ).carry_out  # fmt: skip
        self.limits = Limits()
        self.answers: list[Admit | Refuse | End] = []
        self.others: list[socket.socket] = []
        self.slow_ns = MS  # a row in the second of two lanes; in the first one it takes 1 ms
        for worker in (1, 2):
            self.driver.happened(WorkerUp(worker))

    def answer(self, answer: Admit | Refuse) -> None:
        self.answers.append(answer)

    def end_attachment(self, end: End) -> None:
        self.answers.append(end)

    def attach(self, attach: Attach, uid: int = -1) -> Attachment:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer = Peer(ours)
        peer.uid = peer.uid if uid < 0 else uid
        line, other = socket.socketpair()
        peer.line = Line(line, TO_DAEMON)
        self.others += [theirs, peer.sock, line, other]
        listing = work.Indexed("/none", N, 0, "digest", "content")
        self.driver.happened(RankAttaches(1, peer.uid, check(attach), listing, 1.0, self.limits))
        answer = self.answers.pop()
        if isinstance(answer, Refuse):
            raise Refusal(answer.code, answer.text, answer.field)
        peer.cursor = answer.cursor
        attachment = self.attachments[answer.cursor] = Attachment(answer.cursor, peer, attach)
        return attachment

    def leave(self, attachment: Attachment) -> None:
        self.driver.happened(RankLeft(attachment.cursor))
        del self.attachments[attachment.cursor]

    def tick(self, now_s: float) -> None:
        self.now_s = now_s
        self.driver.happened(Tick())

    def stream(self, attachment: Attachment) -> int:
        return self.table.stream_of(attachment.cursor).id

    def ended(self) -> list[int]:
        """Ranks whose connection is to end, but not by them."""
        return [answer.cursor for answer in self.answers if isinstance(answer, End)]

    def make_rows(self) -> None:
        while self.pool.given:
            worker, fill = self.pool.given.pop(0)
            self.pool.made.append(fill)
            lanes_ns = (MS * fill.count, self.slow_ns * fill.count)[: len(fill.lanes)]
            took = Took(0, MS * fill.count, lanes_ns if len(fill.lanes) > 1 else ())
            self.driver.happened(ChunkMade(worker, fill.task, (), took))

    def read(self, *attachments: Attachment) -> None:
        """Each takes a batch, if one is ready."""
        self.make_rows()
        for attachment in attachments:
            cursor = self.table.cursor(attachment.cursor)
            self.driver.happened(Released(cursor.id, min(cursor.announced, cursor.released + BATCH)))
        self.make_rows()

    def until(self, done: Callable[[], bool], *attachments: Attachment) -> None:
        for _ in range(N):
            if done():
                return
            self.read(*attachments)
        raise AssertionError(self.table.streams)

    def head(self, attachment: Attachment) -> int:
        return self.table.stream_of(attachment.cursor).head

    def is_whole(self) -> None:
        """Facts fit together, memory is that of the lanes, and a new worker can be told."""
        validate(self.coordinator)
        told = [message for message, _ in setup(self.coordinator, self.rings, self.caches)]
        assert sorted(m.stream for m in told if isinstance(m, work.AddStream)) == sorted(self.table.streams)
        lanes = {lane for stream in self.table.streams.values() for lane in stream.lanes}
        assert {m.lane for m in told if isinstance(m, work.AddLane)} == lanes == set(self.rings.held)

    def close(self) -> None:
        self.rings.close()
        self.ledger.close()
        for sock in self.others:
            sock.close()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    made.close()


def begin(room: Room, *more: Attach) -> tuple[list[Attachment], Attachment]:
    """A job (and more), and beside it one that began early and has met it, but for a rank that is not there yet."""
    here = [room.attach(attach) for attach in (ATTACH, *more)]
    room.until(lambda: room.head(here[0]) > N // 2, *here)
    late = room.attach(LATE)
    assert room.coordinator.waits_for == {room.stream(late): room.stream(here[0])}
    room.until(lambda: room.head(here[0]) >= N - 64, late, *here)
    assert len(room.table.streams) == 2
    return here, late


def test_what_a_refused_rank_has_set_off_is_done(room: Room) -> None:
    """It attaches at another place than the kept one, so that its sibling can join; then it is refused."""
    (first,), late = begin(room)
    with pytest.raises(Refusal, match="beyond"):
        room.attach(dataclasses.replace(LATE, rank=1, epoch=0, position=2**61, epoch_start=2**61))
    assert room.stream(first) == room.stream(late)
    room.is_whole()
    room.until(lambda: room.head(late) > N + 600, first, late)
    room.is_whole()


def test_places_that_are_given_up_and_a_parting_in_one_tick(room: Room) -> None:
    """The joined job's lane is the one that the parting gives a new ring."""
    (first, stops), late = begin(room, dataclasses.replace(ATTACH, job="stops"))
    cursor = room.table.cursor(first.cursor)
    room.until(lambda: cursor.released == room.head(first), first)
    assert len(room.table.streams) == 2
    began_s = NOW_S
    room.tick(began_s)
    cursor.note_sync()
    room.tick(began_s + HELD_S)
    assert room.stream(first) == room.stream(late) != room.stream(stops)
    room.is_whole()
    room.until(lambda: room.head(late) > N + 600, first, late)
    room.is_whole()


def test_a_stream_has_no_more_lanes_than_a_task_names(room: Room) -> None:
    """Workers would end at such a task, one after the other."""
    jobs = []
    for size in range(8, 8 + work.MAX_LANES + 2):
        pipeline = Pipeline.from_ops([RandomResizedCrop(size)], 1).to_wire()
        jobs.append(room.attach(dataclasses.replace(ATTACH, job=f"{size}", pipeline=pipeline)))
    room.make_rows()
    assert max(len(fill.lanes) for fill in room.pool.made) == work.MAX_LANES
    for fill in room.pool.made:
        decode(encode(fill), work.TO_WORKER)
    assert all(room.table.cursor(job.cursor).announced for job in jobs)
    room.is_whole()


def test_an_early_stream_brings_no_more_lanes_than_a_task_names(room: Room) -> None:
    first = room.attach(ATTACH)
    room.until(lambda: room.head(first) > N // 2, first)
    jobs = [first]
    for size in range(9, 9 + work.MAX_LANES + 2):
        pipeline = Pipeline.from_ops([RandomResizedCrop(size)], 1).to_wire()
        jobs.append(room.attach(dataclasses.replace(ATTACH, job=f"{size}", epoch=1, pipeline=pipeline)))
    assert room.coordinator.waits_for
    room.until(lambda: room.head(first) > N + 200, *jobs)
    assert not room.coordinator.waits_for
    assert max(len(fill.lanes) for fill in room.pool.made) == work.MAX_LANES
    room.is_whole()


def test_a_rank_that_comes_back_elsewhere_is_no_other_job(room: Room) -> None:
    room.limits = Limits(jobs_per_uid=1)
    two = dataclasses.replace(ATTACH, world_size=2)
    first, second = room.attach(two), room.attach(dataclasses.replace(two, rank=1))
    room.read(first, second)
    room.leave(second)
    room.attach(dataclasses.replace(two, rank=1, position=0, epoch_start=0, rounds=1))
    with pytest.raises(Refusal, match="jobs_per_uid"):
        room.attach(dataclasses.replace(two, rank=1, epoch=1))


@pytest.mark.parametrize("stranger", [False, True])
def test_without_memory_to_part_a_job_attaches_anew(room: Room, stranger: bool) -> None:
    """A job of its own user waits, as ever."""
    slow = room.attach(ATTACH)
    room.until(lambda: room.head(slow) > N // 2, slow)
    quick = room.attach(dataclasses.replace(ATTACH, job="quick", epoch=1), uid=os.getuid() + stranger)
    room.until(lambda: room.stream(slow) == room.stream(quick), slow, quick)
    cursor = room.table.cursor(quick.cursor)
    room.until(lambda: room.head(slow) > N + 600, slow, quick)
    room.until(lambda: cursor.released == room.head(quick), quick)
    room.rings.budget_bytes = 0
    now_s = NOW_S
    for _ in range(8):
        room.tick(now_s)
        cursor.note_sync()
        now_s += 3.0
    assert (slow.cursor in room.ended()) == stranger
    assert quick.cursor not in room.ended()


SLOW = dataclasses.replace(ATTACH, job="slow", pipeline=Pipeline.from_ops([RandomResizedCrop(9)], 1).to_wire(), epoch=1)


def share(room: Room) -> tuple[Attachment, Attachment]:
    """A job, and one of another user whose pipeline is slow, on one stream."""
    quick = room.attach(ATTACH)
    room.until(lambda: room.head(quick) > N // 2, quick)
    slow = room.attach(SLOW, uid=os.getuid() + 1)
    room.until(lambda: room.stream(slow) == room.stream(quick), slow, quick)
    room.slow_ns = 1000 * MS
    room.until(lambda: room.head(slow) > N + 100, slow, quick)
    return quick, slow


def test_a_slow_pipeline_parts_from_another_users(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    """The next job with such a pipeline does so, too."""
    quick, slow = share(room)
    room.tick(NOW_S)
    assert room.stream(slow) != room.stream(quick)
    (said,) = [record.message for record in caplog.records if "holds others back" in record.message]
    assert said.startswith(f"job 'slow' holds others back (uid {os.getuid() + 1}: its pipeline takes ")
    room.is_whole()
    room.until(lambda: room.head(slow) > N + 600, slow, quick)
    room.tick(NOW_S + 60.0)
    assert room.stream(slow) != room.stream(quick)
    # Its stream is there to be shared with the user's other jobs, whoever is first, and with nobody else.
    again = room.attach(dataclasses.replace(SLOW, job="again", epoch=2), uid=os.getuid() + 1)
    assert room.coordinator.waits_for == {room.stream(again): room.stream(slow)}
    other = room.attach(dataclasses.replace(SLOW, job="other", epoch=2), uid=os.getuid() + 2)
    assert room.coordinator.waits_for[room.stream(other)] == room.stream(quick)
    for attachment in (slow, again):
        room.leave(attachment)
    anew = room.attach(SLOW, uid=os.getuid() + 1)
    assert room.stream(anew) != room.stream(quick)
    assert room.stream(anew) not in room.coordinator.waits_for
    room.is_whole()
    # It is forgotten with the last of these streams.
    for attachment in (quick, other, anew):
        room.leave(attachment)
    assert not room.table.streams
    share(room)


def test_without_memory_to_part_a_slow_job_attaches_anew(room: Room) -> None:
    """It is apart from the others then."""
    quick, slow = share(room)
    room.rings.budget_bytes = 0
    now_s = NOW_S
    room.tick(now_s)
    assert room.ended() == []
    room.tick(now_s + 60.0)
    assert room.ended() == [slow.cursor]
    room.leave(slow)
    room.rings.budget_bytes = 1 << 30
    slow = room.attach(dataclasses.replace(SLOW, epoch=1), uid=os.getuid() + 1)
    assert room.stream(slow) != room.stream(quick)
    assert not room.coordinator.waits_for


def test_an_action_that_fails_keeps_no_other_from_being_done(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    first = room.attach(ATTACH)
    told: list[int] = []
    while not told:
        (worker, fill), room.pool.given = room.pool.given[0], room.pool.given[1:]
        given = len(room.pool.given)
        with monkeypatch.context() as patch:
            patch.setattr(room.attachments, "announce", lambda announce: (told.append(announce.upto), 1 // 0))
            with pytest.raises(ZeroDivisionError) if fill.position + fill.count >= BATCH else contextlib.nullcontext():
                room.driver.happened(ChunkMade(worker, fill.task))
    assert len(room.pool.given) > given
    room.read(first)
    room.is_whole()


def test_memory_is_asked_and_answers_though_an_action_failed(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    first, heard = room.attach(ATTACH), list[Any]()
    asks = MakeRing(99, 0, room.table.stream_of(first.cursor).lanes[1].fields, 64, 64)

    def handle(event: Any, _now_s: float) -> list[Any]:
        heard.append(event)
        return [Announce(first.cursor, 0, ()), asks] if isinstance(event, Tick) else [DropRing(99)]

    monkeypatch.setattr(room.coordinator, "handle", handle)
    monkeypatch.setattr(room.attachments, "announce", lambda _announce: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        room.tick(NOW_S)
    assert heard == [Tick(), RingMade(64)]


def test_what_an_action_leads_to_happens_after_all_actions(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is gone when it is admitted leaves after its places are made, and not amidst."""
    handled: list[type] = []
    handle = room.coordinator.handle
    monkeypatch.setattr(
        room.coordinator, "handle", lambda event, now_s: (handled.append(type(event)), handle(event, now_s))[1]
    )
    answered: list[int] = []

    def answer(admit: Admit | Refuse) -> None:
        assert isinstance(admit, Admit)
        room.driver.happened(RankLeft(admit.cursor))
        answered.append(len(handled))

    monkeypatch.setattr(room, "answer", answer)
    listing = work.Indexed("/none", N, 0, "digest", "content")
    room.driver.happened(RankAttaches(1, 0, check(ATTACH), listing, 1.0))
    assert [event.__name__ for event in handled] == ["RankAttaches", "RingMade", "RankLeft"]
    assert answered == [2]
    assert not room.table.streams
    room.is_whole()


@pytest.mark.parametrize("is_short", [True, False])
def test_idle_caches_give_way_to_a_ring(room: Room, monkeypatch: pytest.MonkeyPatch, is_short: bool) -> None:
    """Where only the budget for rings is spent, their end would free nothing of it."""
    heard: list[Any] = []
    room.caches.tell = lambda message, _fds: heard.append(message)
    room.caches.want(CacheSpec("encoded"), work.Indexed("/none", N, 0, "digest", "content"), "/data")
    room.caches.tick(())
    monkeypatch.setattr("prepserver.daemon.executor.machine_free_bytes", lambda: (0 if is_short else 1 << 50, ""))
    room.rings.budget_bytes = 0
    with pytest.raises(Refusal, match="budget"):
        room.attach(ATTACH)
    assert [type(message) for message in heard] == [work.AddCache, *[work.DropCache] * is_short]
    assert room.caches.are_leaving == is_short
    room.caches.close()


def test_a_client_that_takes_none_of_its_rings_must_attach_again(room: Room) -> None:
    """Each new ring is a descriptor on its way, and the kernel allows few of them for all clients."""
    here = room.attach(ATTACH)
    lane = room.table.cursor(here.cursor).lane
    for _ in range(2):
        here.untaken = 0
        for moves in range(3):
            room.attachments.moved(Move(here.cursor, lane, moves))
        assert here.peer.is_listening
    room.attachments.moved(Move(here.cursor, lane, 9))
    assert not here.peer.is_listening


def test_a_limit_on_the_size_of_files_is_named_at_once(room: Room) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(Refusal, match=r"limit on the size of files \(ulimit -f") as caught:
            room.attach(ATTACH)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.code == "memory"
