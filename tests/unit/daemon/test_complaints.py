"""What the log says of peers that misbehave."""

from __future__ import annotations

import logging
import math

import pytest

from prepserver.daemon.complaints import Complaints


def test_a_user_gets_some_lines_and_then_a_count(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(logging.getLogger("test"))
    for number in range(100):
        complaints.warn(1000, "noise %d", number)
    complaints.warn(1001, "of another")
    said = [record.getMessage() for record in caplog.records]
    assert said == [*(f"noise {number}" for number in range(20)), "of another"]
    caplog.clear()
    complaints.tick(0.0)
    assert not caplog.records
    complaints.tick(math.inf)
    assert [record.getMessage() for record in caplog.records] == ["80 more warnings about uid 1000 were not logged"]
    complaints.warn(1000, "again")
    assert caplog.records[-1].getMessage() == "again"
