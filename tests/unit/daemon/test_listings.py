"""Jobs that ask for one source at once share one listing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepserver.daemon.listings import MOST, MOST_PER_UID, SILENT_S, Listings
from prepserver.protocol import work

SOURCE = {"source": "image_folder", "root": "/a"}
FOUND = work.Indexed("/cache/x", 10, 2, "digest", "content")


class Indexing:
    """Keeps the requests, so that a test can answer them when it likes."""

    def __init__(self, at_once: Any = None) -> None:
        self.asked: list[tuple[work.BuildIndex, Callable[[Any], None]]] = []
        self._at_once = at_once
        self.cancelled: list[str] = []

    def build_index(self, request: work.BuildIndex, report: Callable[[Any], None]) -> Callable[[], None]:
        self.asked.append((request, report))
        if self._at_once is not None:
            report(self._at_once)
        return lambda: self.cancelled.append(request.source["root"])

    def roots(self) -> list[str]:
        return [request.source["root"] for request, _ in self.asked]


class Waiting:
    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.is_gone = False

    def scanning(self, samples: int) -> None:
        self.heard.append(samples)

    def listed(self, listing: work.Indexed) -> None:
        self.heard.append(listing)

    def unlistable(self, reason: str) -> None:
        self.heard.append(reason)
        self.is_gone = True  # it was refused


def test_all_who_wait_for_a_source_hear_of_one_scan() -> None:
    indexing, first, second = Indexing(), Waiting(), Waiting()
    listings = Listings(indexing, Path("/cache"), lambda: 0.0)
    listings.want(SOURCE, first, 1)
    ((request, report),) = indexing.asked
    assert request == work.BuildIndex(SOURCE, "/cache")
    report(work.Indexing(5))
    listings.want(dict(reversed(SOURCE.items())), second, 2)
    report(work.Indexing(9))
    report(FOUND)
    assert (first.heard, second.heard) == ([5, 9, FOUND], [9, FOUND])
    assert len(indexing.asked) == 1


def test_another_source_is_another_scan() -> None:
    indexing, listings_of = Indexing(), Waiting()
    listings = Listings(indexing, Path("/cache"), lambda: 0.0)
    listings.want(SOURCE, listings_of, 1)
    listings.want({**SOURCE, "root": "/b"}, listings_of, 1)
    assert indexing.roots() == ["/a", "/b"]


def test_asking_after_the_end_of_a_scan_begins_a_new_one() -> None:
    """The data may have changed since."""
    indexing, waiting = Indexing(at_once=FOUND), Waiting()
    listings = Listings(indexing, Path("/cache"), lambda: 0.0)
    listings.want(SOURCE, waiting, 1)
    listings.want(SOURCE, waiting, 1)
    assert waiting.heard == [FOUND, FOUND]
    assert len(indexing.asked) == 2


def test_a_failed_scan_is_told_to_all_and_may_be_retried() -> None:
    indexing, first, second = Indexing(), Waiting(), Waiting()
    listings = Listings(indexing, Path("/cache"), lambda: 0.0)
    listings.want(SOURCE, first, 1)
    listings.want(SOURCE, second, 1)
    indexing.asked[0][1](work.IndexFailed("no such folder"))
    assert first.heard == second.heard == ["no such folder"]
    listings.want(SOURCE, first, 1)
    assert len(indexing.asked) == 2


def test_who_asks_again_while_being_told_gets_a_scan_of_its_own() -> None:
    indexing = Indexing()
    listings = Listings(indexing, Path("/cache"), lambda: 0.0)

    class Again(Waiting):
        def unlistable(self, reason: str) -> None:
            super().unlistable(reason)
            if len(self.heard) == 1:
                listings.want(SOURCE, self, 1)

    waiting = Again()
    listings.want(SOURCE, waiting, 1)
    indexing.asked[0][1](work.IndexFailed("busy"))
    indexing.asked[1][1](FOUND)
    assert waiting.heard == ["busy", FOUND]


def source(root: object) -> dict[str, Any]:
    return {**SOURCE, "root": str(root)}


def test_a_user_has_so_many_scans_at_a_time_and_no_more() -> None:
    indexing = Indexing()
    listings = Listings(indexing, Path("/cache"), lambda: 0.0)
    for k in range(MOST_PER_UID + 2):
        listings.want(source(k), Waiting(), 1)
    listings.want(source("other"), Waiting(), 2)
    assert indexing.roots() == [*map(str, range(MOST_PER_UID)), "other"]
    indexing.asked[0][1](FOUND)
    assert indexing.roots()[-1] == str(MOST_PER_UID)


def test_all_users_together_have_a_limit_too() -> None:
    indexing = Indexing()
    listings = Listings(indexing, Path("/cache"), lambda: 0.0)
    for uid in range(MOST + 3):
        listings.want(source(uid), Waiting(), uid)
    assert indexing.roots() == [str(uid) for uid in range(MOST)]
    indexing.asked[3][1](work.IndexFailed("gone"))
    assert indexing.roots()[-1] == str(MOST)


def test_a_scan_ends_with_the_last_who_waits_for_it() -> None:
    indexing, first, second = Indexing(), Waiting(), Waiting()
    listings = Listings(indexing, Path("/cache"), lambda: 0.0)
    listings.want(source("a"), first, 1)
    listings.want(source("a"), second, 1)
    first.is_gone = True
    listings.tick()
    assert indexing.cancelled == []
    second.is_gone = True
    listings.tick()
    assert indexing.cancelled == ["a"]
    assert first.heard == second.heard == []


def test_a_question_that_nobody_waits_for_is_never_asked() -> None:
    indexing, late = Indexing(), Waiting()
    listings = Listings(indexing, Path("/cache"), lambda: 0.0)
    for k in range(MOST_PER_UID):
        listings.want(source(k), Waiting(), 1)
    listings.want(source("late"), late, 1)
    late.is_gone = True
    listings.tick()
    indexing.asked[0][1](FOUND)
    assert "late" not in indexing.roots()


def test_a_silent_scan_is_ended_and_one_that_goes_on_is_not() -> None:
    now_s = 0.0
    indexing, waiting = Indexing(), Waiting()
    listings = Listings(indexing, Path("/cache"), lambda: now_s)
    listings.want(source("slow"), waiting, 1)
    for _ in range(5):
        now_s += SILENT_S
        listings.tick()
        indexing.asked[0][1](work.Indexing(7))
    assert indexing.cancelled == []
    now_s += SILENT_S + 1
    listings.tick()
    assert indexing.cancelled == ["slow"]
    assert "reported nothing for 300 s" in waiting.heard[-1]


def test_an_indexer_that_fails_at_once_ends_its_listing_only() -> None:
    """It is started in the place of one that nobody waits for any more."""
    indexing, waiting = Indexing(), [Waiting() for _ in range(MOST_PER_UID + 1)]
    listings = Listings(indexing, Path("/cache"), lambda: 0.0)
    for number, each in enumerate(waiting):
        listings.want({**SOURCE, "root": f"/{number}"}, each, 1)
    waiting[0].is_gone = True
    indexing._at_once = work.IndexFailed("no descriptor is left")
    listings.tick()
    assert waiting[-1].heard == ["no descriptor is left"]
