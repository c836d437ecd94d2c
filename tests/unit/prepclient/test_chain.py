"""A client follows its rings by position: which memory a batch is read from, and which is let go of."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

from prepclient import RandomResizedCrop, SyntheticImages
from prepclient.batch_makers import CudaBatchMaker, HostBatchMaker
from prepclient.chain import RingChain
from prepclient.device import DeviceCopier
from prepclient.feed import ResumePoint, Service
from prepclient.finish import Finish, looks_of
from prepclient.pinning import PinDriver
from prepclient.rows import MappedRing
from prepclient.served import ServedFeed
from prepclient.session import Session
from prepclient.spec import make_spec
from prepclient.steps import BatchMaker
from prepserver.memory.segment import create_segment
from prepserver.protocol.messages import Moved, Ready, Welcome
from tests.support import leaks
from tests.support.fake_device import FakeDevice
from tests.support.images import SMALL, sample_layout
from tests.support.one_peer import leased
from tests.support.sessions import next_step
from tests.support.waiting import wait_until

SPEC = make_spec(
    SyntheticImages(64, size=(20, 20)), [RandomResizedCrop(16)], batch_size=4, shuffle=True, seed=3, drop_last=False,

)  # fmt: skip
LOOK = looks_of(SPEC.pipeline, Finish())[0]
LAYOUT = sample_layout(8, SPEC.pipeline.row.shape, SPEC.pipeline.row.dtype)
WELCOME = Welcome(
    job_id=1, samples=64, num_classes=0, source_digest="x",
    epoch_start=0, position=0, ahead=0, layout=LAYOUT.to_wire(),
)  # fmt: skip


class StageDevice(FakeDevice):
    """Does everything at once, and counts the ranges that are locked."""

    def __init__(self) -> None:
        super().__init__()
        self.locked: set[int] = set()

    def pin_driver(self) -> PinDriver:
        return self

    def register(self, address: int, nbytes: int) -> int:
        self.locked.add(address)
        return 0

    def unregister(self, address: int) -> int:
        self.locked.remove(address)
        return 0

    def describe(self, code: int) -> str:
        return str(code)


@dataclass
class Reader:
    """A maker over a real lease, whose other end is the test's: `say(upto, *starts_of_new_rings)`."""

    session: Session
    maker: BatchMaker
    device: StageDevice
    say: Callable[..., None]
    inodes: list[int]
    feed: ServedFeed

    def step(self) -> set[int]:
        """The values of the next batch."""
        fields = next_step(self.maker, self.session).fields
        self.device.finish_all()
        return {int(value) for name in ("image", "label", "index") for value in fields[name].unique()}

    def held(self) -> list[bool]:
        """Of each ring, in the order in which they came, whether its memory is mapped or held open."""
        gc.collect()
        held = leaks.rings(os.getpid())
        return [inode in held for inode in self.inodes]


def ring_of(value: int) -> int:
    """A ring all of whose values are `value`."""
    fd = create_segment(f"prepserver-lane-{value}", LAYOUT.nbytes)
    rows, _mapping = MappedRing.map_writable(fd, LAYOUT)
    for array in rows.writable_arrays().values():
        array[...] = value
    return fd


@pytest.fixture(params=["host", "lent", "device"])
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reader]:
    """A reader whose rows are in ring 0."""

    device = StageDevice()
    made = DeviceCopier("cuda", [LOOK], 4, finish=Finish(), engine=device, small=SMALL)
    map_rows = (
        partial(MappedRing.map_pinned, driver=made.engine.pin_driver()) if request.param == "device" else MappedRing.map
    )

    def attach() -> ServedFeed:
        return ServedFeed(tmp_path, SPEC, ResumePoint(), Service(timeout_s=60.0), print, map_rows)

    fd = ring_of(0)
    inodes = [os.fstat(fd).st_ino]
    feed, peer = leased(tmp_path, WELCOME, fd, attach)
    os.close(fd)

    def move(start: int) -> None:
        fd = ring_of(len(inodes))
        inodes.append(os.fstat(fd).st_ino)
        assert peer.send(Moved(start, LAYOUT.to_wire(), peer.give(fd)))
        os.close(fd)

    session = Session(64, 0, 0, 0, SPEC.shape)
    said: list[int] = []

    maker: BatchMaker
    if request.param == "device":
        maker = CudaBatchMaker(session, feed, made, {})
    else:
        maker = HostBatchMaker(
            session, feed, [LOOK], Finish(), 4, zero_copy=request.param == "lent", trims={}, drawing=None
        )

    def say(upto: int, *moves: int) -> None:
        for start in moves:
            move(start)
        assert peer.send(Ready(upto, [(upto, len(said), "")]))
        said.append(upto)

        def heard() -> bool:
            feed.poll(session)
            return any(bad.index == len(said) - 1 for bad in session._bad.values())

        wait_until(heard)

    yield Reader(session, maker, device, say, inodes, feed)
    maker.close()
    peer.close()
    feed.close()


def test_a_run_of_no_rows_is_one_piece_wherever_it_is() -> None:
    fds = [ring_of(value) for value in range(2)]
    first, second = (MappedRing.map(fd, LAYOUT) for fd in fds)
    for fd in fds:
        os.close(fd)
    chain = RingChain(first)
    chain.add(6, second)
    for at in (0, 5, 6, 20):
        ((piece,),) = chain.parts(at, at)
        assert (piece.shape, piece.dtype) == ((0, *LOOK.shape), LOOK.dtype)
        assert chain.scalars(at, at)["label"].tolist() == []


def test_numbers_are_copies_across_rings() -> None:
    fds = [ring_of(value) for value in range(2)]
    chain = RingChain(MappedRing.map(fds[0], LAYOUT))
    chain.add(6, MappedRing.map(fds[1], LAYOUT))
    numbers = chain.scalars(3, 10)["label"]
    MappedRing.map_writable(fds[0], LAYOUT)[0].writable_arrays()["label"][4] = 9
    assert numbers.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert (numbers.dtype, numbers.shape) == (torch.int64, (7,))
    assert chain.scalars(3, 10)["label"].tolist() == [0, 9, 0, 1, 1, 1, 1]
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("again", [8, 12])
@pytest.mark.parametrize("seen", [True, False])
def test_a_ring_that_is_never_reached_is_let_go_of(reader: Reader, again: int, seen: bool) -> None:
    """The job is moved from 12 on, and again before it comes so far."""
    reader.say(8)
    assert reader.step() == {0}
    if seen:
        reader.say(8, 12)
        assert reader.step() == {0}
        assert reader.held() == [True, True]
        reader.say(16, again)
    else:
        reader.say(16, 12, again)
        assert reader.step() == {0}
    assert reader.step() == ({2} if again == 8 else {0})
    assert reader.held()[1:] == [False, True]
    assert reader.step() == {2}
    reader.say(20)
    assert reader.step() == {2}
    reader.say(24)
    assert reader.step() == {2}
    assert reader.held() == [False, False, True]
    reader.maker.close()
    reader.feed.close()
    assert not reader.device.locked
