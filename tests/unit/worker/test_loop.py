from __future__ import annotations

import gc
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prepserver.pipeline.caching import head_of
from prepserver.pipeline.ops import RandomCrop, Resize
from prepserver.pipeline.pipeline import Pipeline
from prepserver.protocol.work import (
    FROM_WORKER,
    MAX_CHUNK_ROWS,
    AddCache,
    AddLane,
    AddStream,
    DropCache,
    DropLane,
    DropStream,
    Failed,
    Fill,
    Filled,
    Quarantine,
)
from prepserver.source.files import FileSource
from prepserver.telemetry.page import NO_TASK, StatsPage, create_page
from prepserver.worker import loop
from prepserver.worker.channel import pair, send
from prepserver.worker.fill import fill
from prepserver.worker.sandbox import OPEN
from tests.support.caches import Cache
from tests.support.leaks import descriptors
from tests.support.tiny_images import (
    OwnLane,
    index_of,
    nothing,
    open_stream,
    photo_tree,
    said_before_the_end,
    tiny_pipeline,
)

N = 12


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    yield
    gc.enable()  # the loop runs in this process here, and turns it off


class Daemon:
    """Sends a worker all it has to say, lets it run to the end, and has its answers and its page."""

    def __init__(self, root: Path, broken: frozenset[int] = frozenset()) -> None:
        self.spec = photo_tree(root / "data", N, broken)
        self.cache = root / "cache"
        self.index = index_of(self.spec, self.cache)
        self.ours, self.theirs = pair()
        page_fd = create_page("test")
        self.page = StatsPage(page_fd, writable=False)
        self.page_fd = page_fd

    def say(self, *messages: Any, fds: tuple[int, ...] = ()) -> None:
        for message in messages:
            send(self.ours, message, fds)

    def add_stream(self, stream: int = 0, index_path: str = "", quarantined: tuple[int, ...] = ()) -> None:
        path = index_path or str(self.index.path)
        self.say(AddStream(stream, self.spec.to_wire(), path, "none", 3, list(quarantined)))

    def add_lane(self, number: int, lane: OwnLane, stream: int = 0) -> None:
        self.say(AddLane(number, stream, lane.pipeline.to_wire(), lane.layout.to_wire()), fds=(lane.fd,))

    def run(self) -> tuple[int, list[Any]]:
        self.ours.shutdown(socket.SHUT_WR)
        status = loop.run(0, self.theirs, self.page_fd)
        self.theirs.close()
        answers = said_before_the_end(self.ours, FROM_WORKER)
        self.ours.close()
        return status, answers


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    return Daemon(tmp_path)


def test_a_worker_puts_the_same_rows_as_fill_does(daemon: Daemon) -> None:
    lanes = [OwnLane(tiny_pipeline(), N), OwnLane(tiny_pipeline(8), 2 * N)]
    daemon.add_stream()
    for number, lane in enumerate(lanes):
        daemon.add_lane(number, lane)
    daemon.say(Fill(7, 0, [1, 0], 0, 5), Fill(8, 0, [0, 1], 5, N - 5))
    status, answers = daemon.run()
    assert status == 0
    assert [(type(a), a.task, a.bad) for a in answers] == [(Filled, 7, []), (Filled, 8, [])]
    stream = open_stream(daemon.spec, daemon.cache)
    for lane in lanes:
        twin = OwnLane(lane.pipeline, N)
        fill(stream, [twin.lane], 0, N, nothing)
        assert lane.rows(0, N) == twin.rows(0, N)


def test_the_page_adds_up_what_was_done(daemon: Daemon) -> None:
    lane = OwnLane(tiny_pipeline(), N)
    daemon.add_stream(quarantined=(2,))
    daemon.add_lane(0, lane)
    daemon.say(Fill(7, 0, [0], 0, 5), Fill(8, 0, [0], 5, 4))
    _, answers = daemon.run()
    stats = daemon.page.read()
    assert (stats.tasks, stats.rows, stats.bad_rows, stats.task, stats.busy) == (2, 9, 1, NO_TASK, False)
    assert stats.read_ns == sum(a.read_ns for a in answers)
    assert stats.make_ns == sum(a.make_ns for a in answers)


def test_bad_rows_are_told_with_the_lanes_that_have_them(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, broken=frozenset({3}))
    daemon.add_stream()
    daemon.add_lane(5, OwnLane(tiny_pipeline(), N))
    daemon.add_lane(6, OwnLane(tiny_pipeline(8), N))
    daemon.say(Fill(0, 0, [6, 5], 0, N))
    _, (filled,) = daemon.run()
    ((position, index, reason, lanes),) = filled.bad
    assert (position, index, lanes) == (3, 3, [])
    assert reason.startswith("cats/0003.jpg: ")


def test_so_many_bad_rows_as_a_task_can_have_fit_one_answer(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, broken=frozenset(range(N)))
    daemon.add_stream()
    daemon.add_lane(0, OwnLane(tiny_pipeline(2), MAX_CHUNK_ROWS))
    daemon.say(Fill(0, 0, [0], 2**61, MAX_CHUNK_ROWS))
    _, (filled,) = daemon.run()
    assert len(filled.bad) == MAX_CHUNK_ROWS
    assert filled.bad[0][2].startswith("dogs/0008.jpg: ")


def test_a_quarantined_sample_is_not_touched_from_then_on(daemon: Daemon) -> None:
    """That includes the chunk in hand."""
    lane = OwnLane(tiny_pipeline(), N)
    daemon.add_stream()
    daemon.add_lane(0, lane)
    daemon.say(Fill(0, 0, [0], 0, N), Fill(1, 0, [0], 5, N), Quarantine(0, [4]), Fill(2, 0, [0], 0, N))
    _, answers = daemon.run()
    assert [a.task for a in answers] == [0, 1, 2]
    assert [[row[1] for row in a.bad] for a in answers] == [[4], [4], [4]]


def test_what_arrives_in_the_middle_of_a_chunk_keeps_its_order(daemon: Daemon) -> None:
    lane = OwnLane(tiny_pipeline(), N)
    daemon.add_stream()
    daemon.add_lane(0, lane)
    daemon.say(Fill(0, 0, [0], 0, N), DropLane(0), DropStream(0))
    daemon.add_stream(1)
    daemon.say(Quarantine(1, [2]))
    daemon.add_lane(1, lane, stream=1)
    daemon.say(Fill(1, 1, [1], 0, N))
    daemon.ours.send(b"garbage")
    status, answers = daemon.run()
    assert [[row[1] for row in a.bad] for a in answers] == [[], [2]]
    assert status == os.EX_SOFTWARE


def test_a_source_that_vanished_fails_its_tasks_and_no_others(daemon: Daemon) -> None:
    lane = OwnLane(tiny_pipeline(), N)
    daemon.add_stream(0, index_path=str(daemon.cache / "gone"))
    daemon.add_stream(1)
    daemon.add_lane(0, lane, stream=0)
    daemon.add_lane(1, lane, stream=1)
    daemon.say(Fill(0, 0, [0], 0, 2), Quarantine(0, [1]), Fill(1, 1, [1], 0, 2), Fill(2, 0, [0], 0, 2))
    status, answers = daemon.run()
    assert status == 0
    assert [type(a) for a in answers] == [Failed, Filled, Failed]
    assert answers[0].reason.startswith("SourceError: cannot open the index ")
    assert answers[2].reason == answers[0].reason


def test_a_ring_unlike_its_layout_fails_the_tasks_of_its_lane(daemon: Daemon) -> None:
    lane, other = OwnLane(tiny_pipeline(), N), OwnLane(tiny_pipeline(32), N)
    daemon.add_stream()
    daemon.say(AddLane(0, 0, lane.pipeline.to_wire(), lane.layout.to_wire()), fds=(other.fd,))
    daemon.say(AddLane(1, 0, other.pipeline.to_wire(), lane.layout.to_wire()), fds=(lane.fd,))
    daemon.say(Fill(0, 0, [0], 0, 2), Fill(1, 0, [1], 3, 2))
    _, answers = daemon.run()
    assert [(type(a), a.lane) for a in answers] == [(Failed, 0), (Failed, 1)]
    assert answers[0].reason.startswith("SegmentError: ")
    assert "cats/0003.jpg: ValueError: the row is " in answers[1].reason


def test_a_lane_that_cannot_be_filled_is_named_and_others_go_on(daemon: Daemon) -> None:
    good, bad = OwnLane(tiny_pipeline(), N), OwnLane(tiny_pipeline(8), N)
    twin = OwnLane(tiny_pipeline(), N)
    daemon.add_stream()
    daemon.add_lane(3, good)
    daemon.say(AddLane(4, 0, tiny_pipeline(32).to_wire(), bad.layout.to_wire()), fds=(bad.fd,))
    daemon.say(Fill(0, 0, [3, 4], 0, N), Fill(1, 0, [3], 0, N))
    _, answers = daemon.run()
    assert [(type(a), a.task) for a in answers] == [(Failed, 0), (Filled, 1)]
    assert answers[0].lane == 4
    fill(open_stream(daemon.spec, daemon.cache), [twin.lane], 0, N, nothing)
    assert good.rows(0, N) == twin.rows(0, N)


def test_a_sample_quarantined_in_a_pipeline_is_made_for_others(daemon: Daemon) -> None:
    lanes = [OwnLane(tiny_pipeline(), N), OwnLane(tiny_pipeline(8), N)]
    daemon.add_stream()
    daemon.add_lane(5, lanes[0])
    daemon.say(AddLane(6, 0, lanes[1].pipeline.to_wire(), lanes[1].layout.to_wire(), [2]), fds=(lanes[1].fd,))
    daemon.say(Fill(0, 0, [5, 6], 0, N), Quarantine(0, [4], 6), Fill(1, 0, [5, 6], 0, N))
    _, answers = daemon.run()
    assert [[(row[1], row[3]) for row in a.bad] for a in answers] == [[(2, [6]), (4, [6])]] * 2
    assert [index for _, _, index in lanes[0].rows(0, N)] == list(range(N))


def test_a_sample_quarantined_for_a_lane_yet_to_come_is_bad(daemon: Daemon) -> None:
    """All of it arrives in the middle of a chunk."""
    lanes = [OwnLane(tiny_pipeline(), N), OwnLane(tiny_pipeline(8), N)]
    daemon.add_stream()
    daemon.add_lane(5, lanes[0])
    daemon.say(Fill(0, 0, [5], 0, N))
    daemon.add_lane(6, lanes[1])
    daemon.say(Quarantine(0, [4], 6), Fill(1, 0, [5, 6], 0, N))
    _, answers = daemon.run()
    assert [[(row[1], row[3]) for row in a.bad] for a in answers] == [[], [(4, [6])]]


def test_a_dropped_lane_leaves_nothing_mapped(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where garbage refers to it: an idle worker would have kept it until other jobs came."""

    def litters(stream: Any, targets: list[Any], *rest: Any) -> Any:
        litter = [targets]
        litter.append(litter)
        return fill(stream, targets, *rest)

    monkeypatch.setattr(loop, "fill", litters)
    lane = OwnLane(tiny_pipeline(), N)
    daemon.add_stream()
    daemon.add_lane(0, lane)
    daemon.say(Fill(0, 0, [0], 0, 2), DropLane(0), DropStream(0))
    maps = Path("/proc/self/maps")
    fds = descriptors()
    before = maps.read_text().count("memfd:test-ring")
    daemon.run()
    assert maps.read_text().count("memfd:test-ring") == before
    # the lane's descriptor came over the socket; ours, theirs and the page are closed with the run
    assert len(os.listdir("/proc/self/fd")) == fds - 3


@pytest.mark.parametrize("message", [Fill(0, 9, [], 0, 1), DropLane(9), DropStream(9), Quarantine(9, [])])
def test_a_name_that_was_never_given_ends_the_worker(daemon: Daemon, message: Any) -> None:
    daemon.say(message)
    assert daemon.run() == (os.EX_SOFTWARE, [])


def test_garbage_ends_the_worker(daemon: Daemon) -> None:
    daemon.ours.send(b"garbage")
    assert daemon.run() == (os.EX_SOFTWARE, [])


def test_an_end_of_file_ends_the_worker_in_peace(daemon: Daemon) -> None:
    assert daemon.run() == (os.EX_OK, [])


def test_reads_begin_while_the_chunk_before_is_filled(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a queued chunk, before the first row of it is made; once for each chunk."""
    said: list[tuple[str, int]] = []
    monkeypatch.setattr(FileSource, "reads_ahead", property(lambda _self: True))
    monkeypatch.setattr(FileSource, "prefetch", lambda _self, indices: said.extend(("begun", i) for i in indices))
    monkeypatch.setattr(StatsPage, "begin_sample", lambda _self, _position, index: said.append(("made", index)))
    daemon.add_stream()
    daemon.add_lane(0, OwnLane(tiny_pipeline(), N))
    daemon.say(Fill(7, 0, [0], 0, 3), Fill(8, 0, [0], 3, 3))
    daemon.run()
    assert said.index(("begun", 3)) < said.index(("made", 1))
    assert sorted(said) == sorted((what, index) for index in range(6) for what in ("begun", "made"))


@pytest.mark.parametrize("form", ["encoded", "decoded"])
def test_what_a_cache_holds_is_not_read_ahead(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """An object store would be asked in each epoch for what is never used."""
    said: list[int] = []
    monkeypatch.setattr(FileSource, "reads_ahead", property(lambda _self: True))
    monkeypatch.setattr(FileSource, "prefetch", lambda _self, indices: said.extend(indices))
    daemon.say(AddStream(0, daemon.spec.to_wire(), str(daemon.index.path), "none", 3, listing="me"))
    lane, cache = OwnLane(tiny_pipeline(), 2 * N), Cache(N)
    daemon.add_lane(0, lane)
    head = head_of(lane.pipeline).digest if form == "decoded" else ""
    told = AddCache(0, "me", head, N, cache.shape.extent_bytes, is_file=False)
    daemon.say(told, fds=(cache.fd,))
    worker = loop.Worker(0, daemon.theirs, StatsPage(daemon.page_fd, writable=True), logging.getLogger(), OPEN)
    for _ in range(3):
        worker.handle(*worker.next())
    for task in range(2):
        daemon.say(Fill(task, 0, [0], task * N, N))
        worker.handle(*worker.next())
    assert cache.book.counts.hits == N
    assert said == list(range(N))
    cache.close()
    daemon.theirs.close()
    daemon.ours.close()


def test_a_dropped_cache_is_unmapped_before_the_next_task(daemon: Daemon) -> None:
    """Its memory is wanted elsewhere, and the stream that it served may have no task for long."""
    lane = OwnLane(Pipeline.from_ops([Resize(24), RandomCrop(16)]), 3 * N)
    daemon.say(AddStream(0, daemon.spec.to_wire(), str(daemon.index.path), "none", 3, listing="me"))
    daemon.add_lane(0, lane)
    caches, before = [Cache(N), Cache(N)], len(_segments())
    for number, head in enumerate((head_of(lane.pipeline).digest, "")):
        told = AddCache(number, "me", head, N, caches[number].shape.extent_bytes, is_file=False)
        daemon.say(told, fds=(caches[number].fd,))
    daemon.say(AddCache(2, "me", "broken", 1 << 40, 4096, is_file=False), fds=(caches[0].fd,))
    daemon.say(Fill(0, 0, [0], 0, N), Fill(1, 0, [0], N, N), DropCache(1), DropCache(0), DropCache(2))
    worker = loop.Worker(0, daemon.theirs, StatsPage(daemon.page_fd, writable=True), logging.getLogger(), OPEN)
    for _ in range(7):
        worker.handle(*worker.next())
    assert [cache.book.counts.rows for cache in caches] == [N, N]
    assert caches[0].book.counts.hits == N
    assert len(_segments()) > before
    for _ in range(3):
        worker.handle(*worker.next())
    assert len(_segments()) == before
    daemon.say(Fill(2, 0, [0], 2 * N, N))
    worker.handle(*worker.next())
    del worker
    daemon.theirs.close()
    assert [type(answer) for answer in said_before_the_end(daemon.ours, FROM_WORKER)] == [Filled] * 3
    daemon.ours.close()
    for cache in caches:
        cache.close()


def _segments() -> list[str]:
    """Mappings of caches in this process."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "test-cache" in line]
