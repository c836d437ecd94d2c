"""The copier on a real GPU: against a thread that refills rows the moment they are released."""

from __future__ import annotations

import gc
import queue
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from prepclient import ColorJitter, CutMix, MixUp, RandAugment, RandomErasing
from prepclient.device import DRAWN, DeviceCopier
from prepclient.engine import DeviceUnavailable, cuda_device
from prepclient.finish import Finish, Finisher, drawing_of
from prepclient.pinning import HostPin, open_driver
from prepclient.rowlook import RowLook
from tests.gpu.segment import Segment
from tests.support.finishing import finished
from tests.support.images import SMALL

SHAPE = (64, 64, 3)
LOOK = RowLook(SHAPE)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def busy(cycles: int) -> None:
    """Keeps the current stream busy."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call,unused-ignore]


class RefillingServer(threading.Thread):
    """Fills the rows of released positions at once and says up to where they are full; ends on None."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(daemon=True)
        self.rows = segment.nbytes // LOOK.nbytes
        self.images = segment.bytes[: self.rows * LOOK.nbytes].view(self.rows, *SHAPE)
        self.labels = torch.zeros(self.rows, dtype=torch.int64)
        self.released: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self.filled: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._filled = 0

    def _fill(self, released: int) -> None:
        end = released + self.rows
        for part in self.parts(self._filled, end - self._filled):
            numbers = torch.arange(self._filled, self._filled + part.stop - part.start)
            self.images[part] = (numbers % 251).to(torch.uint8).view(-1, 1, 1, 1)
            self.labels[part] = numbers
            self._filled += len(numbers)
        self.filled.put(self._filled)

    def run(self) -> None:
        self._fill(0)
        while (released := self.released.get()) is not None:
            self._fill(released)

    def parts(self, begin: int, n: int) -> list[slice]:
        row = begin % self.rows
        first = min(n, self.rows - row)
        return [slice(row, row + first), slice(0, n - first)][: 1 + (n > first)]


@pytest.mark.parametrize("lock", [True, False])
@pytest.mark.parametrize("lend", [True, False])
@pytest.mark.parametrize("own_stream", [True, False])
def test_batches_are_right_while_released_rows_are_refilled(
    segment: Segment, device: torch.device, lock: bool, lend: bool, own_stream: bool
) -> None:
    n, batches = 97, 60
    server = RefillingServer(segment)
    copier = DeviceCopier(device, [LOOK], n, zero_copy=lend, small=SMALL)
    pin = HostPin(segment.address, segment.nbytes, open_driver(device), keep=segment)
    if lock:
        pin.start()
    server.start()
    stream = torch.cuda.Stream(device) if own_stream else torch.cuda.current_stream(device)  # type: ignore[no-untyped-call,unused-ignore]
    wrong, kept, filled, submitted = [], [], 0, 0
    with torch.cuda.stream(stream):
        for step in range(batches):
            copier.delivery.ask()
            while copier.delivery.room and submitted < batches * n:
                for end in copier.delivery.poll():
                    server.released.put(end)
                while not server.filled.empty():
                    filled = server.filled.get()
                if submitted + n > filled:
                    if copier.delivery.waiting:
                        break
                    time.sleep(0.001)  # a loop that spins keeps the interpreter from the server's thread
                    continue
                parts = server.parts(submitted, n)
                small = [server.labels[part] for part in parts]
                submitted += n
                copier.submit(submitted, [[server.images[p] for p in parts]], {"label": small, "index": small})
            _key, fields = copier.take()
            if step % 3 == 0:
                busy(2_000_000)
            want = torch.arange(step * n, (step + 1) * n, device=device)
            pixels = (want % 251).to(torch.uint8).view(-1, 1, 1, 1)
            wrong.append((fields["image"] != pixels).sum() + (fields["label"] != want).sum())
            if not lend:
                kept.append((fields["image"], pixels))
    torch.cuda.synchronize()
    assert int(torch.stack(wrong).sum()) == 0
    assert all(bool((image == pixels).all()) for image, pixels in kept)
    copier.close()
    server.released.put(None)
    server.join(60)
    pin.close()


@pytest.mark.parametrize("lend", [True, False])
def test_each_view_arrives_as_a_batch_of_its_own(segment: Segment, device: torch.device, lend: bool) -> None:
    n, views = 33, 3
    pin = HostPin(segment.address, segment.nbytes, open_driver(device), keep=segment)
    pin.start()
    stored = segment.bytes[: views * n * LOOK.nbytes].view(views, n, *SHAPE)
    stored.random_(0, 256)
    copier = DeviceCopier(device, [RowLook(SHAPE, views=views)], n, small={}, zero_copy=lend)
    copier.submit(1, [[rows[:20], rows[20:]] for rows in stored], {})
    got = copier.take().fields["image"]
    assert [view.device for view in got] == [device] * views
    assert all(view.is_contiguous(memory_format=torch.channels_last) for view in got)
    assert torch.equal(torch.stack(got).cpu(), stored.permute(0, 1, 4, 2, 3))
    copier.close()
    pin.close()


def test_rows_come_free_while_the_consumers_stream_is_still_busy(segment: Segment, device: torch.device) -> None:
    pin = HostPin(segment.address, segment.nbytes, open_driver(device), keep=segment)
    pin.start()
    assert pin.wait()
    copier = DeviceCopier(device, [LOOK], 64, small={})
    torch.cuda.synchronize()
    busy(4_000_000_000)
    behind: Any = torch.cuda.Event()  # type: ignore[no-untyped-call,unused-ignore]
    behind.record()
    copier.submit(1, [[segment.bytes[: 64 * LOOK.nbytes].view(64, *SHAPE)]], {})
    freed: list[int] = []
    while not freed:
        freed = copier.delivery.poll()
    assert not behind.query()
    copier.close()
    pin.close()


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [None, torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("normalize", [None, (MEAN, STD)])
def test_the_finishing_step_on_the_gpu_is_the_one_on_the_cpu(
    device: torch.device,
    dtype: torch.dtype | None,
    memory_format: torch.memory_format | None,
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None,
) -> None:
    rows = torch.randint(0, 256, (17, *SHAPE), dtype=torch.uint8)
    finish = Finish(normalize=normalize, dtype=dtype, memory_format=memory_format)
    want = finished(Finisher(finish, LOOK, torch.device("cpu")), [rows])
    got = finished(Finisher(finish, LOOK, device), [rows.to(device)])
    assert got.dtype == want.dtype
    assert got.stride() == want.stride()
    # A fused multiply-add rounds once where the CPU rounds twice; then one unit in the last place of the type.
    ulp = torch.finfo(got.dtype).eps if got.dtype.is_floating_point else 0.0
    torch.testing.assert_close(got.cpu(), want, rtol=ulp, atol=1e-6 if ulp else 0.0)


def test_closing_gives_the_device_memory_back(device: torch.device) -> None:
    gc.collect()
    before = torch.cuda.memory_allocated(device)
    copier = DeviceCopier(device, [LOOK], 64, small=SMALL)
    numbers = {"label": [torch.arange(64)], "index": [torch.arange(64)]}
    copier.submit(1, [[torch.zeros((64, *SHAPE), dtype=torch.uint8)]], numbers)
    copier.take()
    assert torch.cuda.memory_allocated(device) > before
    copier.close()
    del copier
    gc.collect()
    torch.cuda.synchronize()
    torch.empty(1, device=device)  # a block that another stream read is freed by the next allocation
    assert torch.cuda.memory_allocated(device) <= before


def test_a_gpu_that_is_not_there_is_refused_with_their_number() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(DeviceUnavailable, match=rf"torch sees {count} GPU"):
        cuda_device(f"cuda:{count}")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("is_fused", [False, None])
def test_batches_with_ops_come_through_it(segment: Segment, device: torch.device, is_fused: bool | None) -> None:
    n, finish = (
        33,
        Finish(ops=[RandAugment(), RandomErasing(1, value=0), MixUp(1000)], dtype=torch.float32, compile=is_fused),
    )
    pin = HostPin(segment.address, segment.nbytes, open_driver(device), keep=segment)
    pin.start()
    rows = segment.bytes[: n * LOOK.nbytes].view(n, *SHAPE).random_(0, 256)
    small = {"label": torch.arange(n), "index": torch.arange(n)}
    drawing = drawing_of(3, [LOOK], finish)
    assert drawing is not None
    drawn = drawing(0, 100, small)
    copier = DeviceCopier(device, [LOOK], n, small=SMALL, finish=finish, drawing=drawing)
    copier.submit(1, [[rows]], {**{name: [column] for name, column in small.items()}, DRAWN: [drawn]})
    got = copier.take().fields
    assert got.keys() == {"image", "label", "index"}
    want = finished(Finisher(finish, LOOK, torch.device("cpu")), [rows], drawn)
    torch.testing.assert_close(got["image"].cpu(), want, rtol=1e-5, atol=1e-5)
    assert torch.equal(got["label"].cpu(), drawing.softened(small, drawn)["label"])
    copier.close()
    pin.close()


@pytest.mark.filterwarnings("default")  # compilers may warn, here as for users
@pytest.mark.parametrize("is_fused", [False, True])
def test_ops_on_batches_on_the_gpu_are_those_on_the_cpu(
    device: torch.device, is_fused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    ops = [RandAugment(), ColorJitter(0.4, 0.4, 0.4, 0.1), RandomErasing(0.5, value=9), MixUp(1000), CutMix(1000)]
    finish = Finish(normalize=(MEAN, STD), dtype=torch.float16, ops=ops, compile=is_fused)
    on_cpu = replace(finish, compile=False)  # compiling it for the CPU as well would take a minute
    drawing = drawing_of(3, [LOOK], finish)
    assert drawing is not None
    for n in (17, 5):  # a short last batch
        rows = torch.randint(0, 256, (n, *SHAPE), dtype=torch.uint8)
        small = {"label": torch.arange(n), "index": torch.arange(n)}
        drawn = drawing(0, 100, small)
        want = finished(Finisher(on_cpu, LOOK, torch.device("cpu")), [rows], drawn)
        caplog.clear()
        got = finished(Finisher(finish, LOOK, device), [rows.to(device)], drawn.to(device))
        assert "cannot fuse" not in caplog.text
        assert got.stride() == want.stride()
        torch.testing.assert_close(got.cpu(), want, rtol=2e-3, atol=2e-3)
        soft = drawing.softened({"label": small["label"].to(device)}, drawn.to(device))["label"]
        torch.testing.assert_close(soft.cpu(), drawing.softened(small, drawn)["label"])
