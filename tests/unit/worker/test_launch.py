from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from prepserver.protocol.work import FROM_ZYGOTE, Spawn
from prepserver.worker.channel import Channel, pair
from prepserver.worker.child import describe_status
from prepserver.worker.launch import Zygote, ZygoteAbsent, ZygoteError
from tests.support.leaks import descriptors, descriptors_left


def test_a_status_is_told_in_words() -> None:
    assert describe_status(3) == "exit status 3"
    assert describe_status(-9) == "killed by SIGKILL"
    assert describe_status(-40) == "killed by signal 40"


def test_a_zygote_that_was_not_started_makes_no_children() -> None:
    zygote = Zygote()
    with pytest.raises(ZygoteError, match="not running"):
        zygote.spawn("worker", 0)
    assert zygote.receive() == []
    assert zygote.close()


def test_only_the_main_thread_starts_a_zygote() -> None:
    raised: list[ZygoteError] = []

    def start() -> None:
        with pytest.raises(ZygoteError) as e:
            Zygote().start()
        raised.append(e.value)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])


def test_a_zygote_that_does_not_start_says_how_it_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    zygote = Zygote()
    zygote.start()
    with pytest.raises(ZygoteError, match="exit status 1"):
        zygote.wait_ready()
    assert zygote.close()


def test_whoever_waits_for_a_zygote_watches_the_lifeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The zygote imports plug-ins, which may take long: a daemon whose owner has ended does not wait for that."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    zygote = Zygote()
    zygote.start()
    lifeline, ends = os.pipe()
    os.close(ends)
    try:
        with pytest.raises(ZygoteError, match="the process that this daemon belongs to has ended"):
            zygote.wait_ready(lifeline_fd=lifeline)
    finally:
        os.close(lifeline)
    assert zygote.close()


def test_a_zygote_without_a_descriptor_is_an_error() -> None:
    """A daemon that has none left tries again later: an `OSError` would end it."""
    with descriptors_left(0), pytest.raises(ZygoteError, match="no line to the zygote: Too many open files"):
        Zygote().start()


def test_a_zygote_that_lacks_room_for_a_request_is_not_gone() -> None:
    """Who waits for another zygote would wait for nothing."""
    ours, theirs = pair()
    zygote = Zygote()
    zygote._channel = Channel(ours, FROM_ZYGOTE)
    while not zygote.blocked:
        zygote._channel.send(Spawn(0, 0, "indexer"))
    needed = 3  # a page and the ends of a line; then the copies of two of them, which wait
    before = descriptors()
    with descriptors_left(needed), pytest.raises(ZygoteError, match="cannot ask the zygote") as raised:
        zygote.spawn("indexer", 0)
    assert not isinstance(raised.value, ZygoteAbsent)
    assert descriptors() == before
    assert zygote.close()
    theirs.close()


def test_an_interpreter_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    zygote = Zygote()
    with pytest.raises(ZygoteError, match="/nonexistent/python"):
        zygote.start()
    assert zygote.close()
