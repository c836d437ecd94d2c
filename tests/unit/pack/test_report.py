from __future__ import annotations

import pytest

from prepserver.pack.report import Report


def test_lines_come_now_and_then_with_rate_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("prepserver.pack.report.time.monotonic", lambda: now_s[0])
    lines = Report(10.0)
    lines.begin(1000, 200)
    for done in range(200, 500):
        now_s[0] += 0.125  # exact in binary
        lines.progress(done)
    lines.end()
    assert capsys.readouterr().err.splitlines() == [
        "packed 279 of 1000, 8 samples/s, 1 min 31 s left",
        "packed 359 of 1000, 8 samples/s, 1 min 21 s left",
        "packed 439 of 1000, 8 samples/s, 1 min 10 s left",
    ]
