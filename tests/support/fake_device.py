"""A device without a GPU: two streams whose queued work happens only when a test says so.

It implements `prepclient.engine.Engine`. Everything that CUDA may do late is done late: a copy reads its
host bytes when it is stepped, half of them at a time, and the consumer's kernels read their buffers when they
are stepped. So whoever overwrites a host row, a staging block or a device buffer too early is seen as wrong
bytes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias

import torch

from prepclient.pinning import PinDriver

StreamName: TypeAlias = Literal["copies", "consumer"]

UNWRITTEN = 0xEE


class FakeEvent:
    """Completes when the stream that recorded it gets there."""

    def __init__(self) -> None:
        self.completed = False
        self.at_ns = 0


class LocksEverything:
    """A driver to which all memory is as good."""

    def register(self, address: int, nbytes: int) -> int:
        return 0

    def unregister(self, address: int) -> int:
        return 0

    def describe(self, code: int) -> str:
        return str(code)


class FakeDevice:
    """Streams are queues of operations; an operation that cannot run yet answers False and stays."""

    def __init__(self) -> None:
        self.queues: dict[StreamName, deque[Callable[[], bool]]] = {"copies": deque(), "consumer": deque()}
        self.retired = 0
        self.clock_ns: Callable[[], int] = time.monotonic_ns
        self.buffers = 0

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def buffer(self, nbytes: int) -> torch.Tensor:
        self.buffers += 1
        return torch.full((nbytes,), UNWRITTEN, dtype=torch.uint8, device="cpu")

    def staging(self, nbytes: int) -> torch.Tensor:
        return torch.full((nbytes,), UNWRITTEN, dtype=torch.uint8, device="cpu")

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        to, of = target.view(-1).view(torch.uint8), source.view(-1).view(torch.uint8)
        assert to.shape == of.shape
        middle = len(of) // 2

        def half(part: slice) -> bool:
            to[part] = of[part]
            return True

        self.queues["copies"].append(lambda: half(slice(0, middle)))
        self.queues["copies"].append(lambda: half(slice(middle, None)))

    def launch(self, work: Callable[[], None]) -> None:
        def run() -> bool:
            work()
            return True

        self.queues["consumer"].append(run)

    def pin_driver(self) -> PinDriver:
        return LocksEverything()

    def retire(self, buffer: torch.Tensor) -> None:
        self.retired += 1

    def mark_copies(self) -> FakeEvent:
        return self._mark("copies")

    def mark_consumer(self) -> FakeEvent:
        return self._mark("consumer")

    def _mark(self, name: StreamName) -> FakeEvent:
        event = FakeEvent()

        def complete() -> bool:
            event.completed = True
            event.at_ns = self.clock_ns()
            return True

        self.queues[name].append(complete)
        return event

    def copies_wait(self, event: FakeEvent) -> None:
        self.queues["copies"].append(lambda: event.completed)

    def consumer_waits(self, event: FakeEvent) -> None:
        self.queues["consumer"].append(lambda: event.completed)

    def done(self, event: FakeEvent) -> bool:
        return event.completed

    def wait(self, event: FakeEvent) -> None:
        """The host sleeps: the device goes on by itself until the event completes."""
        while not event.completed:
            self._go_on()

    def elapsed_ns(self, first: FakeEvent, second: FakeEvent) -> int:
        return second.at_ns - first.at_ns

    def synchronize(self) -> None:
        while self.queues["copies"]:
            self._go_on()

    def _go_on(self) -> None:
        assert self.step("copies") or self.step("consumer"), "deadlock: neither stream can go on"

    def step(self, name: StreamName) -> bool:
        """Runs the oldest operation of a stream; False when there is none or it waits for the other one."""
        queue = self.queues[name]
        if not queue or not queue[0]():
            return False
        queue.popleft()
        return True

    def run(self, name: StreamName) -> None:
        """Runs a stream as far as it can get alone."""
        while self.step(name):
            pass

    def finish_all(self) -> None:
        """Runs both streams empty."""
        while any(self.queues.values()):
            self._go_on()


class RunningDevice(FakeDevice):
    """Goes on by itself, a little whenever it is asked how far it is."""

    def done(self, event: FakeEvent) -> bool:
        self.step("copies")
        self.step("consumer")
        return super().done(event)
