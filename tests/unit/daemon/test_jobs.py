"""Jobs that are joined and parted while others come and are refused: what is decided is done before anything else."""

from __future__ import annotations

import dataclasses
import os
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator

import pytest

from prepclient import RandomResizedCrop, SyntheticImages
from prepserver import __version__
from prepserver.daemon import jobs as jobs_room
from prepserver.daemon.access import Access
from prepserver.daemon.attach import Peer
from prepserver.daemon.jobs import Attachment, Jobs, Refusal
from prepserver.daemon.rings import Rings
from prepserver.pipeline.pipeline import Pipeline
from prepserver.protocol import work
from prepserver.protocol.messages import PROTOCOL, Attach
from prepserver.schedule.actions import Action, Announce, DropLane, DropStream, Joined, Move, Submit
from prepserver.schedule.scheduler import Scheduler
from prepserver.schedule.stream import Took

N = 4000
BATCH = 16
MS = 10**6
HELD_S = 130.0  # longer than a place is kept for a rank

ATTACH = Attach(
    (PROTOCOL, PROTOCOL), __version__, "first", SyntheticImages(N, 8).to_wire(), "full", 0,
    Pipeline.from_ops([RandomResizedCrop(8)], 1).to_wire(), BATCH, drop_last=False, rank=0, world_size=1,
    join_wait_s=1e4, lag="detach",
)  # fmt: skip
LATE = dataclasses.replace(ATTACH, job="late", epoch=1, batch_size=BATCH // 2, world_size=2)


class Room:
    """A daemon's decisions without its processes: chunks are made at once, clients release as they are told."""

    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.rings = Rings(1 << 30)
        access = Access(os.getuid())
        self.jobs = Jobs(self.scheduler, self.rings, lambda _message, _fds: None, 2, lambda: 1.0, access, self.do)
        self.given: list[Submit] = []
        self.joined: list[Joined] = []
        self.others: list[socket.socket] = []
        self.slow_ns = MS  # a row in the second of two lanes; in the first one it takes 1 ms
        for worker in (1, 2):
            self.do(self.scheduler.worker_up(worker))

    def do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Submit():
                    self.given.append(action)
                case Announce(cursor):
                    assert self.jobs.attachments[cursor].lane == self._lane(cursor), "told of rows in another ring"
                case Move():
                    self.jobs.moved(action)
                case Joined():
                    self.joined.append(action)
                    self.jobs.joined(action)
                case DropLane(lane):
                    self.jobs.drop_lane(lane)
                case DropStream(stream):
                    self.jobs.drop_stream(stream)

    def attach(self, attach: Attach, uid: int = -1) -> Attachment:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.others.append(theirs)
        peer = Peer(ours)
        peer.uid = peer.uid if uid < 0 else uid
        self.others.append(peer.sock)
        listing = work.Indexed("/none", N, 0, "digest", "content")
        welcome, _, actions = self.jobs.admit(peer, jobs_room.check(attach), listing)
        self.do(actions)
        return self.jobs.attachments[welcome.job_id]

    def hung_up(self) -> list[int]:
        """Ranks whose connection was ended, but not by them."""
        poll = select.poll()
        for attachment in self.jobs.attachments.values():
            poll.register(attachment.peer.sock, select.POLLIN)
        ended = {fd for fd, _ in poll.poll(0)}
        return [cursor for cursor, a in self.jobs.attachments.items() if a.peer.fileno() in ended]

    def make_rows(self) -> None:
        while self.given:
            submit = self.given.pop(0)
            lanes_ns = (MS * submit.count, self.slow_ns * submit.count)[: len(submit.lanes)]
            took = Took(0, MS * submit.count, lanes_ns if len(submit.lanes) > 1 else ())
            self.do(self.scheduler.task_done(submit.worker, submit.task, (), took))
            self.do(self.scheduler.give_out())

    def read(self, *attachments: Attachment) -> None:
        """Each takes a batch, if it is there."""
        self.make_rows()
        for attachment in attachments:
            cursor = self.scheduler.stream_of(attachment.cursor).cursors[attachment.cursor]
            self.do(self.scheduler.release(cursor.id, min(cursor.announced, cursor.released + BATCH)))
        self.make_rows()

    def until(self, done: Callable[[], bool], *attachments: Attachment) -> None:
        for _ in range(N):
            if done():
                return
            self.read(*attachments)
        raise AssertionError(self.scheduler.streams)

    def head(self, attachment: Attachment) -> int:
        return self.scheduler.stream_of(attachment.cursor).head

    def is_whole(self) -> None:
        """What the jobs know is what the scheduler knows, and a new worker can be told."""
        told = [message.stream for message, _ in self.jobs.setup_messages() if isinstance(message, work.AddStream)]
        assert sorted(told) == sorted(self.scheduler.streams)
        for cursor, attachment in self.jobs.attachments.items():
            stream = self.scheduler.stream_of(cursor)
            group = self.jobs._groups[attachment.group]
            assert attachment.stream == group.stream == stream.id
            assert attachment.lane == group.lane == self._lane(cursor)
        assert set(self.rings.held) == {lane for s in self.scheduler.streams.values() for lane in s.lanes}

    def close(self) -> None:
        self.rings.close()
        for sock in self.others:
            sock.close()

    def _lane(self, cursor: int) -> int:
        return self.scheduler.stream_of(cursor).cursors[cursor].lane


def test_an_older_client_hears_what_to_use_instead_of_skip() -> None:
    with pytest.raises(Refusal, match=r"lag = 'skip' .* With 'detach' the job loses nothing; 'auto'") as e:
        jobs_room.check(dataclasses.replace(ATTACH, lag="skip"))
    assert (e.value.message.code, e.value.message.field) == ("spec", "lag")


@pytest.fixture
def room() -> Iterator[Room]:
    made = Room()
    yield made
    made.close()


def begin(room: Room, *more: Attach) -> tuple[list[Attachment], Attachment]:
    """A job (and more), and beside it one that began early and has met it, but for a rank that is not there yet."""
    here = [room.attach(attach) for attach in (ATTACH, *more)]
    room.until(lambda: room.head(here[0]) > N // 2, *here)
    late = room.attach(LATE)
    assert room.scheduler.waits_for == {late.stream: here[0].stream}
    room.until(lambda: room.head(here[0]) >= N - 64, late, *here)
    assert not room.joined
    return here, late


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[2J", "a\x00b", "\u202eback"])
def test_a_job_whose_name_cannot_be_shown_is_refused(name: str) -> None:
    with pytest.raises(Refusal, match="cannot be shown") as refused:
        jobs_room.check(dataclasses.replace(ATTACH, job=name))
    assert refused.value.message.field == "job"
    assert str(refused.value).isprintable()


def test_what_a_refused_rank_has_set_off_is_done(room: Room) -> None:
    """It comes to another place than the one that was kept for it, so that its sibling can join; then it is refused."""
    (first,), late = begin(room)
    with pytest.raises(Refusal, match="beyond"):
        room.attach(dataclasses.replace(LATE, rank=1, epoch=0, position=2**61, epoch_start=2**61))
    assert [joined.into for joined in room.joined] == [first.stream]
    room.is_whole()
    room.until(lambda: room.head(late) > N + 600, first, late)
    room.is_whole()


def test_places_that_are_given_up_and_a_parting_in_one_tick(room: Room) -> None:
    """The joined job's lane is the one that the parting gives a new ring."""
    (first, stops), late = begin(room, dataclasses.replace(ATTACH, job="stops"))
    cursor = room.scheduler.stream_of(first.cursor).cursors[first.cursor]
    room.until(lambda: cursor.released == room.head(first), first)
    assert not room.joined
    began_s = time.monotonic()
    room.jobs.tick(began_s)
    cursor.asks()
    room.jobs.tick(began_s + HELD_S)
    assert len(room.joined) == 1
    assert first.stream == late.stream != stops.stream
    room.is_whole()
    room.until(lambda: room.head(late) > N + 600, first, late)
    room.is_whole()


@pytest.mark.parametrize("stranger", [False, True])
def test_without_memory_to_part_a_job_attaches_anew(room: Room, stranger: bool) -> None:
    """A job of its own user waits, as ever."""
    slow = room.attach(ATTACH)
    room.until(lambda: room.head(slow) > N // 2, slow)
    quick = room.attach(dataclasses.replace(ATTACH, job="quick", epoch=1), uid=os.getuid() + stranger)
    room.until(lambda: bool(room.joined), slow, quick)
    cursor = room.scheduler.stream_of(quick.cursor).cursors[quick.cursor]
    room.until(lambda: room.head(slow) > N + 600, slow, quick)
    room.until(lambda: cursor.released == room.head(quick), quick)
    room.rings.budget_bytes = 0
    now_s = time.monotonic()
    for _ in range(8):
        room.jobs.tick(now_s)
        cursor.asks()
        now_s += 3.0
    assert (slow.cursor in room.hung_up()) == stranger
    assert quick.cursor not in room.hung_up()


SLOW = dataclasses.replace(ATTACH, job="slow", pipeline=Pipeline.from_ops([RandomResizedCrop(9)], 1).to_wire(), epoch=1)


def share(room: Room) -> tuple[Attachment, Attachment]:
    """A job, and one of another user whose pipeline is slow, on one stream."""
    quick = room.attach(ATTACH)
    room.until(lambda: room.head(quick) > N // 2, quick)
    slow = room.attach(SLOW, uid=os.getuid() + 1)
    room.until(lambda: slow.stream == quick.stream, slow, quick)
    room.slow_ns = 1000 * MS
    room.until(lambda: room.head(slow) > N + 100, slow, quick)
    return quick, slow


def test_a_slow_pipeline_parts_from_another_users(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    """The next job with such a pipeline does so, too."""
    quick, slow = share(room)
    room.jobs.tick(time.monotonic())
    assert slow.stream != quick.stream
    (said,) = [record.message for record in caplog.records if "holds others back" in record.message]
    assert said.startswith(f"job 'slow' holds others back (uid {os.getuid() + 1}: its pipeline takes ")
    room.is_whole()
    room.until(lambda: room.head(slow) > N + 600, slow, quick)
    room.jobs.tick(time.monotonic() + 60.0)
    assert slow.stream != quick.stream
    # Its stream is there to be shared with the user's other jobs, whoever is first, and with nobody else.
    again = room.attach(dataclasses.replace(SLOW, job="again", epoch=2), uid=os.getuid() + 1)
    assert room.scheduler.waits_for == {again.stream: slow.stream}
    other = room.attach(dataclasses.replace(SLOW, job="other", epoch=2), uid=os.getuid() + 2)
    assert room.scheduler.waits_for[other.stream] == quick.stream
    for attachment in (slow, again):
        room.do(room.jobs.leave(attachment.cursor))
    anew = room.attach(SLOW, uid=os.getuid() + 1)
    assert anew.cursor not in room.scheduler.stream_of(quick.cursor).cursors
    assert anew.stream not in room.scheduler.waits_for
    room.is_whole()
    # It is forgotten with the last of these streams.
    for attachment in (quick, other, anew):
        room.do(room.jobs.leave(attachment.cursor))
    assert not room.scheduler.streams
    share(room)


def test_without_memory_to_part_a_slow_job_attaches_anew(room: Room) -> None:
    """It is apart from the others then."""
    quick, slow = share(room)
    room.rings.budget_bytes = 0
    now_s = time.monotonic()
    room.jobs.tick(now_s)
    assert room.hung_up() == []
    room.jobs.tick(now_s + 60.0)
    assert room.hung_up() == [slow.cursor]
    room.do(room.jobs.leave(slow.cursor))
    room.rings.budget_bytes = 1 << 30
    slow = room.attach(dataclasses.replace(SLOW, epoch=1), uid=os.getuid() + 1)
    assert slow.stream != quick.stream
    assert not room.scheduler.waits_for
