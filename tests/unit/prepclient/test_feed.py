"""What a client asks a daemon for."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from prepclient import Joining, SyntheticImages
from prepclient import served as room
from prepclient.errors import BatchTimeout, ProtocolViolation
from prepclient.feed import ResumePoint, Service, Until
from prepclient.served import ServedFeed
from prepclient.session import Session
from prepclient.spec import make_spec
from prepserver.daemon.attach import Peer
from prepserver.memory.segment import create_segment
from prepserver.pipeline.ops import RandomResizedCrop
from prepserver.protocol.layout import RingLayout
from prepserver.protocol.messages import Sync, Welcome
from prepserver.schedule.early import EARLY_PATIENCE
from tests.support.images import sample_layout
from tests.support.one_peer import leased


@pytest.mark.parametrize(("asked_s", "timeout_s", "sent_s"), [(30.0, 600.0, 30.0), (30.0, 30.0, 10.0), (0.0, 5.0, 0.0)])
def test_waiting_for_a_shared_stream_ends_before_the_batch_wait(
    asked_s: float, timeout_s: float, sent_s: float
) -> None:
    assert Joining(wait_s=asked_s).longest_wait_s(timeout_s) == sent_s
    assert EARLY_PATIENCE * sent_s < timeout_s


SPEC = make_spec(
    SyntheticImages(64, size=(20, 20)),
    [RandomResizedCrop(16)],
    batch_size=4,
    shuffle=True,
    seed=3,
    drop_last=False,
)


def served_by(runtime_dir: Path, layout: RingLayout) -> tuple[ServedFeed, Peer]:
    """A feed, and the other end of its connection."""
    welcome = Welcome(1, 64, 0, "x", 0, 0, 0, layout.to_wire())
    fd = create_segment("test", layout.nbytes)
    try:
        return leased(runtime_dir, welcome, fd, lambda: ServedFeed(runtime_dir, SPEC, ResumePoint(), Service(), print))
    finally:
        os.close(fd)


def test_a_ring_of_other_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProtocolViolation, match="the pipeline makes rows of"):
        served_by(tmp_path, sample_layout(8, (9, 9, 3), "uint8"))


@pytest.mark.parametrize("held_up", [True, False])
def test_a_job_whose_device_is_busy_does_not_say_that_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_up: bool
) -> None:
    monkeypatch.setattr(room, "SYNC_AFTER_S", 0.01)
    served, peer = served_by(tmp_path, sample_layout(8, SPEC.pipeline.row.shape, SPEC.pipeline.row.dtype))
    session = Session(64, 0, 0, 0, SPEC.shape)
    asked = 0
    said: list[object] = []
    monkeypatch.setattr(served._connection, "send", said.append)

    def until() -> bool:
        nonlocal asked
        asked += 1
        return asked > 30

    served.wait(session, 60.0, Until(until, lambda: 0.005, lambda: held_up))
    assert {type(message) for message in said} == ({Sync} if held_up else set())
    peer.close()
    served.close()


@pytest.mark.parametrize(("waits_for", "said"), [("ranks", "Sharding(rank=0, world_size=1)"), ("job 3", "status")])
def test_a_rank_that_waits_for_the_others_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_for: str, said: str
) -> None:
    served, peer = served_by(tmp_path, sample_layout(8, SPEC.pipeline.row.shape, SPEC.pipeline.row.dtype))
    status = {"jobs": [{"id": 1, "waits_for": waits_for}], "chunks": []}
    monkeypatch.setattr(room, "ask_status", lambda *_: status)
    until = Until(lambda: False, lambda: 0.005, lambda: True)
    with pytest.raises(BatchTimeout, match=re.escape(said)):
        served.wait(Session(64, 0, 0, 0, SPEC.shape), 0.01, until)
    peer.close()
    served.close()


def test_time_in_which_the_process_was_stopped_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served, peer = served_by(tmp_path, sample_layout(8, SPEC.pipeline.row.shape, SPEC.pipeline.row.dtype))
    monkeypatch.setattr(room, "ask_status", lambda *_: {"jobs": [], "chunks": []})
    asked, at_s = 0, time.monotonic()
    monkeypatch.setattr(room, "time", SimpleNamespace(monotonic=lambda: at_s))

    def is_met() -> bool:
        nonlocal asked, at_s
        asked += 1
        at_s += 3600 if asked == 3 else 0.5  # `docker pause`
        return False

    with pytest.raises(BatchTimeout):
        served.wait(Session(64, 0, 0, 0, SPEC.shape), 5.0, Until(is_met, lambda: 0.005, lambda: True))
    assert asked >= 8
    peer.close()
    served.close()
