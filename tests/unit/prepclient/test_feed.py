"""What a client asks a daemon for."""

from __future__ import annotations

import pytest

from prepclient.feed import join_wait
from prepserver.schedule.early import PATIENCE


@pytest.mark.parametrize(("asked_s", "timeout_s", "sent_s"), [(30.0, 600.0, 30.0), (30.0, 30.0, 10.0), (0.0, 5.0, 0.0)])
def test_a_wait_for_a_shared_stream_ends_before_the_wait_for_a_batch_does(
    asked_s: float, timeout_s: float, sent_s: float
) -> None:
    assert join_wait(asked_s, timeout_s) == sent_s
    assert PATIENCE * sent_s < timeout_s
