"""Jobs that ask for one source at once share one listing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from prepserver.daemon.listings import Listings
from prepserver.protocol import work

SOURCE = {"source": "image_folder", "root": "/a"}
FOUND = work.Indexed("/cache/x", 10, 2, "digest", "content")


class Indexing:
    """Keeps the requests, so that a test can answer them when it likes."""

    def __init__(self, at_once: Any = None) -> None:
        self.asked: list[tuple[work.BuildIndex, Callable[[Any], None]]] = []
        self._at_once = at_once

    def build_index(self, request: work.BuildIndex, report: Callable[[Any], None]) -> None:
        self.asked.append((request, report))
        if self._at_once is not None:
            report(self._at_once)


class Waiting:
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def scanning(self, samples: int) -> None:
        self.heard.append(samples)

    def listed(self, listing: work.Indexed) -> None:
        self.heard.append(listing)

    def unlistable(self, reason: str) -> None:
        self.heard.append(reason)


def test_all_who_wait_for_a_source_hear_of_one_scan_from_when_they_came() -> None:
    indexing, first, second = Indexing(), Waiting(), Waiting()
    listings = Listings(indexing, Path("/cache"))
    listings.want(SOURCE, first)
    ((request, report),) = indexing.asked
    assert request == work.BuildIndex(SOURCE, "/cache")
    report(work.Indexing(5))
    listings.want(dict(reversed(SOURCE.items())), second)
    report(work.Indexing(9))
    report(FOUND)
    assert (first.heard, second.heard) == ([5, 9, FOUND], [9, FOUND])
    assert len(indexing.asked) == 1


def test_another_source_is_another_scan() -> None:
    indexing, listings_of = Indexing(), Waiting()
    listings = Listings(indexing, Path("/cache"))
    listings.want(SOURCE, listings_of)
    listings.want({**SOURCE, "root": "/b"}, listings_of)
    assert [request.source["root"] for request, _ in indexing.asked] == ["/a", "/b"]


def test_who_asks_after_the_end_gets_a_new_scan_as_the_data_may_have_changed() -> None:
    indexing, waiting = Indexing(at_once=FOUND), Waiting()
    listings = Listings(indexing, Path("/cache"))
    listings.want(SOURCE, waiting)
    listings.want(SOURCE, waiting)
    assert waiting.heard == [FOUND, FOUND]
    assert len(indexing.asked) == 2


def test_a_scan_that_fails_is_told_to_all_with_its_reason_and_may_be_tried_again() -> None:
    indexing, first, second = Indexing(), Waiting(), Waiting()
    listings = Listings(indexing, Path("/cache"))
    listings.want(SOURCE, first)
    listings.want(SOURCE, second)
    indexing.asked[0][1](work.IndexFailed("no such folder"))
    assert first.heard == second.heard == ["no such folder"]
    listings.want(SOURCE, first)
    assert len(indexing.asked) == 2


def test_who_asks_again_while_being_told_gets_a_scan_of_its_own() -> None:
    indexing = Indexing()
    listings = Listings(indexing, Path("/cache"))

    class Again(Waiting):
        def unlistable(self, reason: str) -> None:
            super().unlistable(reason)
            if len(self.heard) == 1:
                listings.want(SOURCE, self)

    waiting = Again()
    listings.want(SOURCE, waiting)
    indexing.asked[0][1](work.IndexFailed("busy"))
    indexing.asked[1][1](FOUND)
    assert waiting.heard == ["busy", FOUND]
