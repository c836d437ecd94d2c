"""What a client asks a daemon for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prepclient import Joining, SyntheticImages
from prepclient import served as room
from prepclient.feed import Start
from prepclient.served import ServedFeed
from prepclient.session import Session
from prepclient.spec import make_spec
from prepserver.memory.segment import create_segment
from prepserver.pipeline.ops import RandomResizedCrop
from prepserver.protocol.messages import Sync, Welcome
from prepserver.schedule.early import PATIENCE
from tests.support.images import sample_layout
from tests.support.one_peer import leased


@pytest.mark.parametrize(("asked_s", "timeout_s", "sent_s"), [(30.0, 600.0, 30.0), (30.0, 30.0, 10.0), (0.0, 5.0, 0.0)])
def test_waiting_for_a_shared_stream_ends_before_the_batch_wait(
    asked_s: float, timeout_s: float, sent_s: float
) -> None:
    assert Joining(wait_s=asked_s).longest_wait_s(timeout_s) == sent_s
    assert PATIENCE * sent_s < timeout_s


@pytest.mark.parametrize("held_up", [True, False])
def test_a_job_whose_device_is_busy_does_not_say_that_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_up: bool
) -> None:
    monkeypatch.setattr(room, "_SYNC_AFTER_S", 0.01)
    spec = make_spec(
        SyntheticImages(64, size=(20, 20)), [RandomResizedCrop(16)], batch_size=4, shuffle=True, seed=3,
        drop_last=False,
    )  # fmt: skip
    layout = sample_layout(8, spec.pipeline.row.shape, spec.pipeline.row.dtype)
    welcome = Welcome(
        job_id=1, samples=64, num_classes=0,
        source_digest="x", epoch_start=0, position=0, ahead=0, layout=layout.to_wire(),
    )  # fmt: skip
    fd = create_segment("test", layout.nbytes)
    served, peer = leased(
        tmp_path, welcome, fd,
        lambda: ServedFeed(
            tmp_path, spec, Start(), prefetch=0, timeout_s=60.0,
            joining=Joining(wait_s=0.0, lag="wait"), on_scanning=print
        ),
    )  # fmt: skip
    os.close(fd)
    session = Session(64, 0, 0, 0, spec.shape)
    asked = 0
    said: list[object] = []
    monkeypatch.setattr(served._connection, "send", said.append)

    def until() -> bool:
        nonlocal asked
        asked += 1
        return asked > 30

    served.wait(session, 60.0, until, lambda: 0.005, lambda: held_up)
    assert {type(message) for message in said} == ({Sync} if held_up else set())
    peer.close()
    served.close()
