from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest

from prepserver.source.progress import Progress


def test_a_count_is_told_ten_times_a_second_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    told: list[int] = []
    monkeypatch.setattr("prepserver.source.progress.time.monotonic", lambda: now_s)
    progress = Progress(told.append)
    for millisecond in range(1, 1001):
        now_s = millisecond / 1000
        progress.found(millisecond)
    progress.finished(1050)
    assert told[-1] == 1050
    assert 10 <= len(told) <= 11
    assert all(later - earlier >= 100 for earlier, later in pairwise([0, *told[:-1]]))


def test_the_first_error_by_place_ends_the_scan() -> None:
    """So a dataset with several broken files has one error, and not another one each time."""

    def work(name: str) -> None:
        time.sleep(0.05 if name == "a" else 0)
        raise ValueError(name)

    for _ in range(3):
        with pytest.raises(ValueError, match="a"):
            Progress(lambda _found: None).over(work, ["a", "b", "c"], 3, lambda: 0, remote=False)


@pytest.mark.parametrize("remote", [False, True])
def test_storage_that_hangs_is_silent_if_it_is_local(monkeypatch: pytest.MonkeyPatch, remote: bool) -> None:
    """Then the daemon's limit on silence ends the scan; remote reads have limits of their own."""
    monkeypatch.setattr("prepserver.source.progress._PERIOD_S", 0.01)
    answers = threading.Event()
    told: list[int] = []
    looked = 0

    def work(name: str) -> str:
        assert name == "quick" or answers.wait(60)
        return name

    def samples() -> int:
        nonlocal looked
        looked += 1
        if looked == 30:
            answers.set()
        return 5

    assert Progress(told.append).over(work, ["quick", "hangs"], 2, samples, remote) == ["quick", "hangs"]
    assert looked >= 30
    assert len(told) > 10 if remote else len(told) <= 3, told
