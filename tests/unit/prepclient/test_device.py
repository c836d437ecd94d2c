"""The device copier on a fake device: exact bytes whatever completes when, and what it says of bad input."""

from __future__ import annotations

import gc
import os
import weakref
from types import SimpleNamespace

import pytest
import torch

from prepclient import engine
from prepclient.device import DeviceCopier
from prepclient.engine import CudaEngine, DeviceUnavailable, cuda_device
from prepclient.finish import Finish
from prepclient.rowlook import RowLook
from prepserver.pipeline.errors import SpecError
from tests.support.fake_device import FakeDevice, FakeEvent
from tests.support.fake_ring import SHAPE, FakeRing, Step
from tests.support.images import SMALL

LOOK = RowLook(SHAPE)


def copier_on(
    device: FakeDevice, *, depth: int = 2, max_batch: int = 3, finish: Finish | None = None, lend: bool = False
) -> DeviceCopier:
    return DeviceCopier(
        "cuda", [LOOK], max_batch, depth=depth, finish=finish, zero_copy=lend, engine=device, small=SMALL
    )


def images(n: int) -> torch.Tensor:
    return torch.arange(n * LOOK.nbytes, dtype=torch.uint8).view(n, *SHAPE)


def numbers(n: int) -> dict[str, list[torch.Tensor]]:
    return {"label": [torch.arange(n) + 100], "index": [torch.arange(n) + 200]}


def test_a_batch_arrives_with_all_its_fields() -> None:
    device = FakeDevice()
    copier = copier_on(device)
    copier.submit(7, [[images(3)[:2], images(3)[2:]]], numbers(3))
    key, fields = copier.take()
    device.finish_all()
    assert key == 7
    assert torch.equal(fields["image"], images(3).permute(0, 3, 1, 2))
    assert fields["image"].is_contiguous(memory_format=torch.channels_last)
    assert fields["label"].tolist() == [100, 101, 102]
    assert fields["index"].tolist() == [200, 201, 202]


@pytest.mark.parametrize("lend", [False, True])
def test_each_view_arrives_as_a_dense_batch_of_its_own(lend: bool) -> None:
    device = FakeDevice()
    copier = DeviceCopier("cuda", [RowLook(SHAPE, views=2)], 3, zero_copy=lend, engine=device, small=SMALL)
    other = 255 - images(3)
    copier.submit(7, [[images(3)[:2], images(3)[2:]], [other[:1], other[1:]]], numbers(3))
    _key, fields = copier.take()
    device.finish_all()
    first, second = fields["image"]
    assert torch.equal(first, images(3).permute(0, 3, 1, 2))
    assert torch.equal(second, other.permute(0, 3, 1, 2))
    assert all(view.is_contiguous(memory_format=torch.channels_last) for view in (first, second))
    assert fields["label"].tolist() == [100, 101, 102]
    copier.close()
    assert device.retired == 9


def test_every_view_is_finished() -> None:
    device = FakeDevice()
    look = RowLook(SHAPE, views=2)
    copier = DeviceCopier("cuda", [look], 3, finish=Finish(normalize=((0.5,), (0.25,))), engine=device, small=SMALL)
    copier.submit(1, [[images(2)], [255 - images(2)]], numbers(2))
    _key, fields = copier.take()
    device.finish_all()
    for got, stored in zip(fields["image"], (images(2), 255 - images(2)), strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, (stored.permute(0, 3, 1, 2) / 255 - 0.5) / 0.25)


def test_batches_of_different_lengths_keep_their_own() -> None:
    device = FakeDevice()
    copier = copier_on(device)
    for n in (3, 1):
        copier.submit(n, [[images(n)]], numbers(n))
    assert [len(copier.take().fields["image"]) for _ in range(2)] == [3, 1]


def test_the_finishing_step_runs_on_the_consumers_stream() -> None:
    device = FakeDevice()
    copier = copier_on(device, finish=Finish(dtype=torch.float16, memory_format=torch.contiguous_format))
    copier.submit(1, [[images(2)]], numbers(2))
    _key, fields = copier.take()
    device.run("copies")
    assert copier.delivery.poll() == [1]
    device.finish_all()
    assert fields["image"].dtype == torch.float16
    assert fields["image"].is_contiguous()
    want = (images(2).permute(0, 3, 1, 2).double() / 255).half()
    torch.testing.assert_close(fields["image"], want, rtol=2**-10, atol=0)


def test_a_stage_may_carry_no_small_fields() -> None:
    device = FakeDevice()
    copier = DeviceCopier("cuda", [LOOK], 2, small={}, engine=device)
    copier.submit(1, [[images(2)]], {})
    _key, fields = copier.take()
    device.finish_all()
    assert list(fields) == ["image"]
    assert torch.equal(fields["image"], images(2).permute(0, 3, 1, 2))


def test_lent_tensors_are_the_device_buffers_and_kept_are_not() -> None:
    device = FakeDevice()
    places = []
    for lend in (True, False):
        copier = copier_on(device, depth=1, lend=lend)
        taken = []
        for key in range(4):
            copier.delivery.ask()
            copier.submit(key, [[images(2)]], numbers(2))
            taken.append(copier.take().fields)
        device.finish_all()
        places.append(len({(fields["image"].data_ptr(), fields["label"].data_ptr()) for fields in taken}))
    assert places == [2, 4]


@pytest.mark.parametrize(("lend", "ends"), [(False, [1, 2, 3]), (True, [1, 2])])
def test_only_a_lent_batch_makes_the_next_copy_wait_for_the_step(lend: bool, ends: list[int]) -> None:
    """The step is the user's computation on the batch."""
    device = FakeDevice()
    copier = copier_on(device, depth=1, lend=lend)
    for key in (1, 2):
        copier.submit(key, [[images(2)]], numbers(2))
    copier.take()
    device.run("copies")
    device.run("consumer")
    ended: list[bool] = []
    device.queues["consumer"].append(lambda: bool(ended))  # the user's step, which takes long
    copier.delivery.ask()
    copier.submit(3, [[images(2)]], numbers(2))
    device.run("copies")
    assert copier.delivery.poll() == ends
    ended.append(True)
    copier.close()


def test_small_numbers_may_change_as_soon_as_they_are_submitted() -> None:
    device = FakeDevice()
    copier = copier_on(device)
    small = numbers(2)
    copier.submit(1, [[images(2)]], small)
    small["label"][0].zero_()
    _key, fields = copier.take()
    device.finish_all()
    assert fields["label"].tolist() == [100, 101]


def test_a_stage_made_in_inference_mode_works_outside_of_it() -> None:
    device = FakeDevice()
    with torch.inference_mode():
        copier = copier_on(device)
    copier.submit(1, [[images(2)]], numbers(2))
    _key, fields = copier.take()
    device.finish_all()
    assert torch.equal(fields["image"], images(2).permute(0, 3, 1, 2))


def test_closing_waits_for_copies_and_retires_each_buffer_once() -> None:
    device = FakeDevice()
    copier = copier_on(device)
    copier.submit(1, [[images(2)]], numbers(2))
    assert copier.close() == [1]
    assert not device.queues["copies"]
    assert device.retired == 6
    assert copier.close() == []
    assert device.retired == 6


@pytest.mark.parametrize("parts", [[], [images(0)]])
@pytest.mark.parametrize("lend", [True, False])
def test_an_empty_batch_comes_in_its_turn_and_starts_no_copy(parts: list[torch.Tensor], lend: bool) -> None:
    device = FakeDevice()
    copier = copier_on(device, lend=lend)
    copier.submit(1, [[images(2)]], numbers(2))
    copies = len(device.queues["copies"])
    copier.submit(2, [parts], {"label": [], "index": [torch.empty(0, dtype=torch.int64)]})
    assert len(device.queues["copies"]) == copies + 1  # the mark behind it
    assert copier.take().key == 1
    key, fields = copier.take()
    device.finish_all()
    assert copier.delivery.poll() == [1, 2]
    assert key == 2
    assert (fields["image"].shape, fields["image"].dtype) == ((0, 3, *images(2).shape[1:3]), torch.uint8)
    assert [(fields[name].shape, fields[name].dtype) for name in ("label", "index")] == [((0,), torch.int64)] * 2


def test_a_finish_that_does_not_fit_is_refused_at_construction() -> None:
    with pytest.raises(SpecError, match="channels"):
        copier_on(FakeDevice(), finish=Finish(normalize=((0.5,) * 4, (1.0,) * 4)))


def test_an_engine_takes_the_stream_of_one_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps freed memory for the stream that allocated it."""
    made: list[object] = []

    def stream(device: torch.device) -> object:
        made.append(object())
        return made[-1]

    monkeypatch.setattr(engine, "_cuda", SimpleNamespace(Stream=stream))
    device = torch.device("cuda", 77)
    first, second = CudaEngine(device), CudaEngine(device)
    assert len(made) == 2
    del first
    third, fourth = CudaEngine(device), CudaEngine(device)
    assert len(made) == 3
    assert third._copies is made[0]
    assert {id(each._copies) for each in (second, third, fourth)} == {id(each) for each in made}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_the_error_says_what_torch_sees() -> None:
    with pytest.raises(DeviceUnavailable, match=r"device = 'cuda:1': torch .* (built without CUDA|sees no GPU)"):
        cuda_device("cuda:1")


def test_another_kind_of_device_is_refused() -> None:
    with pytest.raises(DeviceUnavailable, match="device = 'meta': use"):
        cuda_device("meta")


# The proof that the fake device has teeth: with any one wait of the discipline taken out, some schedule that a
# GPU may choose delivers wrong bytes; with all of them in place, none of these schedules does.


class ReleasesOnIssue(FakeDevice):
    """Rows go back when the copy was issued."""

    def done(self, event: FakeEvent) -> bool:
        return True


class OverwritesWhatIsRead(FakeDevice):
    """A copy does not stay behind the consumer's reads of its buffer."""

    def copies_wait(self, event: FakeEvent) -> None: ...


class ReadsWhatTravels(FakeDevice):
    """The consumer does not wait for the copy."""

    def consumer_waits(self, event: FakeEvent) -> None: ...


class RewritesItsStaging(FakeDevice):
    """The host does not wait before it writes a staging block again."""

    def wait(self, event: FakeEvent) -> None: ...


def eager_copies(device: FakeDevice) -> None:
    device.run("copies")


def eager_consumer(device: FakeDevice) -> None:
    device.run("consumer")


def nothing_until_the_end(device: FakeDevice) -> None: ...


SCHEDULES: list[Step] = [eager_copies, eager_consumer, nothing_until_the_end]


def wrong_batches(device: FakeDevice, step: Step, lend: bool) -> int:
    """Runs a client over a ring whose rows are refilled the moment they are free; counts corrupt batches."""
    ring = FakeRing(rows=60, batch=2)
    ring.run(copier_on(device, max_batch=2, lend=lend), device, batches=20, step=step)
    device.finish_all()
    return ring.count_wrong()


@pytest.mark.parametrize("lend", [False, True])
@pytest.mark.parametrize("step", SCHEDULES)
def test_every_batch_is_right_when_rows_are_refilled_at_once(step: Step, lend: bool) -> None:
    assert wrong_batches(FakeDevice(), step, lend) == 0


@pytest.mark.parametrize(
    ("broken", "lend"),
    [
        (ReleasesOnIssue, False),
        (OverwritesWhatIsRead, True),
        (ReadsWhatTravels, False),
        (RewritesItsStaging, False),
    ],
)
def test_the_fake_device_shows_each_missing_wait_as_wrong_bytes(broken: type[FakeDevice], lend: bool) -> None:
    assert any(wrong_batches(broken(), step, lend) for step in SCHEDULES)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("end", ["close", "drop"])
def test_a_forked_child_ends_nothing_of_the_device(end: str) -> None:
    """Neither are events, streams and page-locked blocks freed, which calls CUDA."""

    class Counts(FakeDevice):
        ended = 0

        def mark_copies(self) -> FakeEvent:
            event = super().mark_copies()
            weakref.finalize(event, setattr, Counts, "ended", 1)
            return event

        def staging(self, nbytes: int) -> torch.Tensor:
            block = super().staging(nbytes)
            weakref.finalize(block, setattr, Counts, "ended", 1)
            return block

        def synchronize(self) -> None:
            Counts.ended = 1

    device = Counts()
    copier = copier_on(device)
    copier.submit(1, [[images(2)]], numbers(2))
    pid = os.fork()
    if pid == 0:
        if end == "close":
            assert copier.close() == []
        del copier, device
        gc.collect()
        os._exit(7 + Counts.ended)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    device.finish_all()
    assert copier.delivery.poll() == [1]
    copier.close()
