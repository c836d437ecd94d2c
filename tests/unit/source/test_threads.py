"""Threads for reads: one that cannot be started costs nothing while there are others."""

from __future__ import annotations

import threading

import pytest

from prepserver.source.storage.threads import Threads


def test_calls_are_made_by_the_threads_that_could_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample is not bad because the system has no thread left: see `prepserver.source.samples.NOT_THE_SAMPLE`."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = Threads(4)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="no thread to read with"):
            threads.begin(lambda: 1)
    assert threads.begin(lambda: 2).wait(30) == 2
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert threads.begin(lambda: 3).wait(30) == 3
