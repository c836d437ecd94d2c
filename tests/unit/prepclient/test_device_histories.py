"""Any interleaving of copies, kernels, host steps and refills: hypothesis drives the stage on a fake device."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prepclient.device import DeviceCopier
from prepclient.rowlook import RowLook
from tests.support.fake_device import FakeDevice
from tests.support.fake_ring import SHAPE, FakeRing
from tests.support.images import SMALL

MAX_BATCH = 3


class StageHistory(RuleBasedStateMachine):
    """A client, an impatient server and a device that completes what it likes when it likes."""

    @initialize(depth=st.integers(1, 3), lend=st.booleans(), rows=st.integers(MAX_BATCH, 12), views=st.integers(1, 3))
    def start(self, depth: int, lend: bool, rows: int, views: int) -> None:
        self.depth, self.lend = depth, lend
        self.device = FakeDevice()
        self.ring = FakeRing(rows, MAX_BATCH, views)
        self.in_hand = 0
        look = RowLook(SHAPE, views=views)
        self.stage = DeviceCopier(
            "cuda", [look], MAX_BATCH, depth=depth, zero_copy=lend, engine=self.device, small=SMALL
        )

    @rule(sizes=st.lists(st.integers(1, MAX_BATCH), min_size=1, max_size=4))
    def next_batch(self, sizes: list[int]) -> None:
        """One step of the consumer, with as much ahead as there is room, rows and will for."""
        self.ring.release(self.stage.delivery.poll())
        self.stage.delivery.ask()
        self.in_hand = 0
        for n in sizes:
            if self.stage.delivery.room and self.ring.may_submit(n):
                self.ring.submit(self.stage, n)
        if self.stage.delivery.waiting:
            self.ring.take(self.stage, self.device)
            self.in_hand = 1
        assert self.stage.delivery.waiting <= self.depth

    @rule(times=st.integers(1, 6))
    def copies_go_on(self, times: int) -> None:
        for _ in range(times):
            self.device.step("copies")

    @rule(times=st.integers(1, 6))
    def kernels_go_on(self, times: int) -> None:
        for _ in range(times):
            self.device.step("consumer")

    @rule()
    def poll(self) -> None:
        self.ring.release(self.stage.delivery.poll())

    @rule()
    def drain(self) -> None:
        self.ring.release(self.stage.delivery.drain())
        assert self.stage.delivery.travelling == 0

    @precondition(lambda self: self.stage.delivery.waiting)
    @rule()
    def discard(self) -> None:
        self.stage.delivery.discard()
        self.ring.forget()
        assert self.stage.delivery.waiting == 0

    @invariant()
    def every_buffer_is_free_or_waits_or_is_in_hand(self) -> None:
        assert self.stage.delivery.room + self.stage.delivery.waiting + self.in_hand == self.depth + 1

    def teardown(self) -> None:
        if not hasattr(self, "stage"):
            return
        self.device.finish_all()
        self.ring.release(self.stage.delivery.poll())
        assert self.ring.released == self.ring.submitted
        assert self.ring.count_wrong() == 0
        if not self.lend:
            assert self.ring.count_wrong(kept=True) == 0


TestStageHistory = StageHistory.TestCase
TestStageHistory.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
