"""Jobs that ask for one source at once share one listing."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prepserver.daemon.listings import MOST, MOST_PER_UID, SILENT_S, Listings
from prepserver.daemon.poll import Poll
from prepserver.protocol import work
from prepserver.telemetry.page import StatsPage, create_page
from prepserver.worker.channel import pair, receive, send
from prepserver.worker.child import Child
from prepserver.worker.launch import ZygoteError

SOURCE = {"source": "image_folder", "root": "/a"}
FOUND = work.Indexed("/cache/x", 10, 2, "digest", "content")


class Indexing:
    """The listings, whose indexers are ends of sockets that say what a test says."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.refuses: ZygoteError | None = None  # no indexer can be started
        self.asked: list[work.BuildIndex] = []
        self.children: list[Child] = []
        self._ends: list[socket.socket] = []
        self._poll = Poll()
        self._page = create_page("prepserver-test")
        self.listings = Listings(self._poll, self.spawn, Path("/cache"), lambda: self.now_s)

    def spawn(self) -> Child:
        if self.refuses is not None:
            raise self.refuses
        ours, theirs = pair()
        self._ends.append(theirs)
        self.children.append(Child(len(self._ends), 0, "indexer", ours, StatsPage(self._page, writable=False)))
        return self.children[-1]

    def roots(self) -> list[str]:
        """The sources whose indexers were started."""
        for end in self._ends[len(self.asked) :]:
            self.asked.append(receive(end, work.TO_INDEXER)[0])
        return [request.source["root"] for request in self.asked]

    def says(self, number: int, message: Any) -> None:
        """What the indexer that was started as this one says is heard."""
        self.roots()
        send(self._ends[number], message)
        self._poll.run_once(1.0)

    def cancelled(self) -> list[str]:
        """The sources whose indexers were ended."""
        return [root for root, child in zip(self.roots(), self.children, strict=True) if child.fileno() < 0]

    def close(self) -> None:
        self.listings.close()
        for child, end in zip(self.children, self._ends, strict=True):
            child.close()
            end.close()
        self._poll.close()
        os.close(self._page)


@pytest.fixture
def indexing() -> Iterator[Indexing]:
    made = Indexing()
    yield made
    made.close()


class Waiting:
    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.is_gone = False

    def hear(self, word: work.Indexing | work.Indexed | work.IndexFailed) -> None:
        self.heard.append(getattr(word, "reason", word))
        self.is_gone = isinstance(word, work.IndexFailed)  # it was refused


def test_all_who_wait_for_a_source_hear_of_one_scan(indexing: Indexing) -> None:
    first, second = Waiting(), Waiting()
    indexing.listings.want(SOURCE, first, 1)
    indexing.says(0, work.Indexing(5))
    assert indexing.asked == [work.BuildIndex(SOURCE, "/cache")]
    indexing.listings.want(dict(reversed(SOURCE.items())), second, 2)
    indexing.says(0, work.Indexing(9))
    indexing.says(0, FOUND)
    assert (first.heard, second.heard) == ([work.Indexing(5), work.Indexing(9), FOUND], [work.Indexing(9), FOUND])
    assert len(indexing.children) == 1


def test_a_request_that_no_message_holds_is_refused(indexing: Indexing) -> None:
    large = [Waiting() for _ in range(MOST_PER_UID + 1)]
    for number, waiting in enumerate(large):
        indexing.listings.want({**SOURCE, "root": f"/{number}" + "x" * 70_000}, waiting, 1)
    indexing.listings.tick()
    assert all("fewer: BuildIndex has 70" in waiting.heard[0] for waiting in large)
    assert all(child.fileno() < 0 for child in indexing.children)


def test_another_source_is_another_scan(indexing: Indexing) -> None:
    waiting = Waiting()
    indexing.listings.want(SOURCE, waiting, 1)
    indexing.listings.want({**SOURCE, "root": "/b"}, waiting, 1)
    assert indexing.roots() == ["/a", "/b"]


def test_asking_after_the_end_of_a_scan_begins_a_new_one(indexing: Indexing) -> None:
    """The data may have changed since."""
    waiting = Waiting()
    for number in range(2):
        indexing.listings.want(SOURCE, waiting, 1)
        indexing.says(number, FOUND)
    assert waiting.heard == [FOUND, FOUND]


def test_a_failed_scan_is_told_to_all_and_may_be_retried(indexing: Indexing) -> None:
    first, second = Waiting(), Waiting()
    indexing.listings.want(SOURCE, first, 1)
    indexing.listings.want(SOURCE, second, 1)
    indexing.says(0, work.IndexFailed("no such folder"))
    assert first.heard == second.heard == ["no such folder"]
    indexing.listings.want(SOURCE, first, 1)
    assert len(indexing.children) == 2


def test_who_asks_again_while_being_told_gets_a_scan_of_its_own(indexing: Indexing) -> None:

    class Again(Waiting):
        def hear(self, word: Any) -> None:
            super().hear(word)
            if len(self.heard) == 1:
                indexing.listings.want(SOURCE, self, 1)

    waiting = Again()
    indexing.listings.want(SOURCE, waiting, 1)
    indexing.says(0, work.IndexFailed("busy"))
    indexing.says(1, FOUND)
    assert waiting.heard == ["busy", FOUND]


def source(root: object) -> dict[str, Any]:
    return {**SOURCE, "root": str(root)}


def test_a_user_has_so_many_scans_at_a_time_and_no_more(indexing: Indexing) -> None:
    for k in range(MOST_PER_UID + 2):
        indexing.listings.want(source(k), Waiting(), 1)
    indexing.listings.want(source("other"), Waiting(), 2)
    assert indexing.roots() == [*map(str, range(MOST_PER_UID)), "other"]
    indexing.says(0, FOUND)
    assert indexing.roots()[-1] == str(MOST_PER_UID)


def test_all_users_together_have_a_limit_too(indexing: Indexing) -> None:
    for uid in range(MOST + 3):
        indexing.listings.want(source(uid), Waiting(), uid)
    assert indexing.roots() == [str(uid) for uid in range(MOST)]
    indexing.says(3, work.IndexFailed("gone"))
    assert indexing.roots()[-1] == str(MOST)


def test_a_scan_ends_with_the_last_who_waits_for_it(indexing: Indexing) -> None:
    first, second = Waiting(), Waiting()
    indexing.listings.want(source("a"), first, 1)
    indexing.listings.want(source("a"), second, 1)
    first.is_gone = True
    indexing.listings.tick()
    assert indexing.cancelled() == []
    second.is_gone = True
    indexing.listings.tick()
    assert indexing.cancelled() == ["a"]
    assert first.heard == second.heard == []


def test_a_question_that_nobody_waits_for_is_never_asked(indexing: Indexing) -> None:
    late = Waiting()
    for k in range(MOST_PER_UID):
        indexing.listings.want(source(k), Waiting(), 1)
    indexing.listings.want(source("late"), late, 1)
    late.is_gone = True
    indexing.listings.tick()
    indexing.says(0, FOUND)
    assert "late" not in indexing.roots()


def test_a_silent_scan_is_ended_and_one_that_goes_on_is_not(indexing: Indexing) -> None:
    waiting = Waiting()
    indexing.listings.want(source("slow"), waiting, 1)
    for _ in range(5):
        indexing.now_s += SILENT_S
        indexing.listings.tick()
        indexing.says(0, work.Indexing(7))
    assert indexing.cancelled() == []
    indexing.now_s += SILENT_S + 1
    indexing.listings.tick()
    assert indexing.cancelled() == ["slow"]
    assert "reported nothing for 300 s" in waiting.heard[-1]


def test_a_replaced_indexer_may_be_silent_for_as_long(indexing: Indexing) -> None:
    indexing.listings.want(source("slow"), Waiting(), 1)
    indexing.now_s = SILENT_S - 1
    indexing.listings.exited(indexing.children[0], "it was killed")
    indexing.now_s += 2
    indexing.listings.tick()
    assert len(indexing.children) == 2
    assert indexing.children[1].fileno() >= 0


def test_an_indexer_that_fails_at_once_ends_its_listing_only(indexing: Indexing) -> None:
    """It is started in the place of one that nobody waits for any more."""
    waiting = [Waiting() for _ in range(MOST_PER_UID + 1)]
    for number, each in enumerate(waiting):
        indexing.listings.want({**SOURCE, "root": f"/{number}"}, each, 1)
    waiting[0].is_gone = True
    indexing.refuses = ZygoteError("no descriptor is left")
    indexing.listings.tick()
    assert waiting[-1].heard == ["cannot list the source now: no descriptor is left; try again in a few seconds"]


def test_any_number_of_listings_may_fail_at_once(indexing: Indexing) -> None:
    """Each gives its place to the next one, which fails, too."""
    waiting = [Waiting() for _ in range(sys.getrecursionlimit())]
    for number, each in enumerate(waiting):
        indexing.listings.want(source(number), each, 1)
    indexing.refuses = ZygoteError("no descriptor is left")
    indexing.says(0, FOUND)
    assert [len(each.heard) for each in waiting] == [1] + [0] * (MOST_PER_UID - 1) + [1] * (len(waiting) - MOST_PER_UID)
    indexing.refuses = None
    indexing.listings.want(source("next"), Waiting(), 1)
    assert indexing.roots()[-1] == "next"
