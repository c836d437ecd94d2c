"""The clock of deadlines: pauses of the process do not count."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from prepserver.daemon import awake


def test_a_pause_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    at_s = awake._read_s
    monkeypatch.setattr(awake, "time", SimpleNamespace(monotonic=lambda: at_s))
    for name in ("_read_s", "_paused_s", "_resumed_s"):
        monkeypatch.setattr(awake, name, getattr(awake, name))
    begin_s, first_s = awake.now_s(), at_s
    at_s += awake.PAUSE_S
    assert awake.now_s() - begin_s == pytest.approx(awake.PAUSE_S)  # the loop was busy for so long
    assert awake.since_s(first_s) == pytest.approx(awake.PAUSE_S)
    at_s += 3600
    assert awake.now_s() - begin_s == pytest.approx(awake.PAUSE_S)
    assert awake.since_s(first_s) == pytest.approx(0.0)
    at_s += 2
    assert awake.now_s() - begin_s == pytest.approx(awake.PAUSE_S + 2)
    assert awake.since_s(first_s) == pytest.approx(2.0)
    assert awake.since_s(at_s - 1) == pytest.approx(1.0)
