from __future__ import annotations

import os
import resource
import sys
import threading

import pytest

from prepserver.worker.child import describe_status
from prepserver.worker.launch import Zygote, ZygoteError


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


def test_a_zygote_without_a_descriptor_is_an_error() -> None:
    """A daemon that has none left tries again later: an `OSError` would end it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(free := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(ZygoteError, match="no line to the zygote: Too many open files"):
            Zygote().start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_interpreter_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    zygote = Zygote()
    with pytest.raises(ZygoteError, match="/nonexistent/python"):
        zygote.start()
    assert zygote.close()
