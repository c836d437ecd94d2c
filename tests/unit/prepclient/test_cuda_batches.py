"""The device's whole way in the client, from ring to fields, on a fake device: the bytes of the host's way."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from prepclient import (
    Normalize,
    PadTokens,
    PrepClient,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Sharding,
    SyntheticImages,
    TextLines,
    ToDtype,
    Tokenize,
    Truncate,
)
from prepclient.batch_makers import CudaBatchMaker
from prepclient.device import DeviceCopier
from prepclient.feed import ResumePoint, Until
from prepclient.finish import Finish, looks_of
from prepclient.inline import InlineFeed
from prepclient.session import Bad, Session
from prepclient.spec import make_spec
from tests.support.device_client import DeviceClient
from tests.support.fake_device import FakeDevice
from tests.support.images import SMALL
from tests.support.server import environment
from tests.support.sessions import next_step
from tests.support.texts import lines, vocabulary

SOURCE = SyntheticImages(23, size=(40, 50))
OPS = [RandomResizedCrop(16), RandomHorizontalFlip()]
SPEC: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "drop_last": False}
EPOCHS = 3
FINISHES: list[tuple[bool, dict[str, Any]]] = [
    (False, {}), (True, {}), (False, {"normalize": ((0.4, 0.5, 0.6), (0.2, 0.3, 0.2))})
]  # fmt: skip


def as_views(images: Any) -> tuple[torch.Tensor, ...]:
    return images if isinstance(images, tuple) else (images,)


@pytest.mark.parametrize("views", [1, 2, 5])
@pytest.mark.parametrize(("lend", "finish"), FINISHES)
def test_batches_by_way_of_a_device_are_those_of_the_host(views: int, lend: bool, finish: dict[str, Any]) -> None:
    spec = make_spec(SOURCE, OPS, views=views, **SPEC)
    device = FakeDevice()
    feed = InlineFeed(spec, ResumePoint(), lambda _samples: None)
    session = Session(feed.listing.samples, 0, feed.epoch_start, feed.position, spec.shape)
    feed.attach(session)
    look = looks_of(spec.pipeline, Finish())[0]
    made = DeviceCopier("cuda", [look], 5, finish=Finish(**finish), zero_copy=lend, engine=device, small=SMALL)
    maker = CudaBatchMaker(session, feed, made, {})
    with PrepClient(SOURCE, OPS, inline=True, fields="dict", views=views, **SPEC, **finish) as client:
        for expected in (batch for _ in range(EPOCHS) for batch in client):
            fields = next_step(maker, session).fields
            device.finish_all()
            assert isinstance(fields["image"], tuple) == (views > 1)
            for got, want in zip(as_views(fields["image"]), as_views(expected["image"]), strict=True):
                assert torch.equal(got, want)
                assert got.stride() == want.stride()
            assert all(torch.equal(fields[name], expected[name]) for name in ("label", "index"))
    maker.close()


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize(("lend", "finish"), FINISHES)
def test_batches_of_no_rows_come_through_every_kind_of_delivery(views: int, lend: bool, finish: dict[str, Any]) -> None:
    """Three samples for two ranks, one at a time: equal numbers of batches leave one without a row."""
    source = SyntheticImages(3, size=(40, 50))
    given: dict[str, Any] = {**SPEC, "batch_size": 1, "sharding": Sharding(0, 2), "job": "pair"}
    spec = make_spec(source, OPS, views=views, **given)
    device = FakeDevice()
    feed = InlineFeed(spec, ResumePoint(), lambda _samples: None)
    session = Session(feed.listing.samples, 0, feed.epoch_start, feed.position, spec.shape)
    feed.attach(session)
    made = DeviceCopier(
        "cuda",
        looks_of(spec.pipeline, Finish()),
        1,
        finish=Finish(**finish),
        zero_copy=lend,
        engine=device,
        small=SMALL,
    )
    maker = CudaBatchMaker(session, feed, made, {})
    counts = []
    with PrepClient(source, OPS, inline=True, fields="dict", views=views, zero_copy=lend, **given, **finish) as client:
        for expected in (batch for _ in range(EPOCHS) for batch in client):
            fields = next_step(maker, session).fields
            device.finish_all()
            counts.append(len(expected["index"]))
            for got, want in zip(as_views(fields["image"]), as_views(expected["image"]), strict=True):
                assert want.shape == (counts[-1], 3, 16, 16)
                assert torch.equal(got, want)
                assert (got.dtype, got.shape) == (want.dtype, want.shape)
            assert all(torch.equal(fields[name], expected[name]) for name in ("label", "index"))
    maker.close()
    assert counts == [0, 1] * EPOCHS


class Drip(InlineFeed):
    """Rows come late; while they are missing, `meanwhile` happens."""

    meanwhile: Callable[[], None]

    def wait(self, session: Session, timeout_s: float, until: Until) -> None:
        until.is_met()
        before = until.holds_up(), until.pace_s()
        time.sleep(0.02)
        self.meanwhile()
        until.is_met()
        self.said = [before, (until.holds_up(), until.pace_s())]
        time.sleep(0.02)
        super().wait(session, timeout_s, until)


def test_only_a_device_with_nothing_to_do_waits_for_rows() -> None:
    spec = make_spec(SOURCE, OPS, **SPEC)
    feed = Drip(spec, ResumePoint(), lambda _samples: None)
    session = Session(feed.listing.samples, 0, feed.epoch_start, feed.position, spec.shape)
    device = FakeDevice()
    maker = CudaBatchMaker(
        session, feed, DeviceCopier("cuda", looks_of(spec.pipeline, Finish()), 5, engine=device, small=SMALL), {}
    )
    feed.meanwhile = device.finish_all
    waits = [next_step(maker, session).wait_ns]  # nothing was queued before: the second half
    assert feed.said[1] == (True, None)
    device.run("copies")
    device.run("consumer")
    device.queues["consumer"].append(gate := Gate())  # the training step
    feed.meanwhile = lambda: None
    waits.append(next_step(maker, session).wait_ns)
    assert [held_up for held_up, _pace in feed.said] == [False, False]
    assert all(pace is not None for _held_up, pace in feed.said)
    feed.meanwhile = lambda: (setattr(gate, "open", True), device.finish_all())[0]
    waits.append(next_step(maker, session).wait_ns)
    assert [held_up for held_up, _pace in feed.said] == [False, True]
    assert waits[1] == 0
    assert min(waits[0], waits[2]) >= 20_000_000
    maker.close()


class Gate:
    """An operation of a stream that goes on when it is opened."""

    open = False

    def __call__(self) -> bool:
        return self.open


def test_which_rows_are_valid_travels_with_them() -> None:
    device = FakeDevice()
    with DeviceClient(
        SyntheticImages(20, size=(40, 50)), OPS, batch_size=5, inline=True, on_error="mask",
        fields=("label", "valid"), fake=device,
    ) as client:  # fmt: skip
        batches = iter(client)
        next(batches)
        session = client._attachment.session
        assert session is not None
        session._bad[6] = Bad(6, 3, "broken")
        device.finish_all()
        _labels, valid = next(batches)
        assert valid.tolist() != [True, False, True, True, True]  # it has not been copied yet
        device.finish_all()
        assert valid.tolist() == [True, False, True, True, True]


def test_one_stream_and_one_set_of_buffers_serve_all_attachments() -> None:
    device = FakeDevice()
    client = DeviceClient(SOURCE, OPS, inline=True, fields="dict", fake=device, **SPEC)
    with PrepClient(SOURCE, OPS, inline=True, fields="dict", **SPEC) as other:
        for epoch in range(10):
            client.set_epoch(epoch)
            other.set_epoch(epoch)
            for batch, want in zip(client, other, strict=True):
                device.finish_all()
                assert torch.equal(batch["image"], want["image"])
                if epoch % 2:
                    state = client.state_dict()
            client.load_state_dict(state if epoch % 2 else client.state_dict())
        assert device.buffers == 6
        assert device.retired == 0
    client.close()
    assert device.retired == 6


def test_a_stage_that_an_error_has_cost_a_buffer_is_replaced() -> None:
    class Fails(FakeDevice):
        fails = False

        def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
            if self.fails:
                raise RuntimeError("CUDA error")
            super().copy(target, source)

    device = Fails()
    with DeviceClient(SOURCE, OPS, inline=True, fake=device, **SPEC) as client:
        batches = iter(client)
        next(batches)
        device.fails = True
        with pytest.raises(RuntimeError, match="CUDA error"):
            next(batches)
        device.fails = False
        next(batches)
        assert device.buffers == 12
        assert device.retired == 6


@pytest.mark.parametrize("end", ["close", "drop", "exit"])
def test_copies_end_before_their_memory_is_unlocked(end: str) -> None:
    """At an exit without `close`, too."""
    said = subprocess.run(
        [sys.executable, "-m", "tests.support.leaving_job", end],
        env=environment(PYTHONPATH=str(Path(__file__).parents[3])), capture_output=True, text=True,
        timeout=600, check=True,
    )  # fmt: skip
    assert said.stdout.split() == ["locked", "drained", "unlocked"], said.stderr
    assert said.stderr == ""


@pytest.mark.parametrize("served", [False, pytest.param(True, marks=pytest.mark.integration)])
def test_the_users_default_device_is_not_asked(served: bool, request: pytest.FixtureRequest) -> None:
    way = {"runtime_dir": request.getfixturevalue("shared_server").runtime_dir} if served else {"inline": True}
    ops = [*OPS, ToDtype("float32", scale=True), Normalize((0.5,) * 3, (0.2,) * 3)]
    given: dict[str, Any] = {**SPEC, "on_error": "mask", "fields": "dict", **way}
    with PrepClient(SOURCE, ops, **given) as client:
        expected = list(client)
    torch.set_default_device("meta")
    try:
        for make in (PrepClient, DeviceClient):
            with make(SOURCE, ops, **given) as client:
                for batch, want in zip(client, expected, strict=True):
                    if isinstance(client, DeviceClient):
                        client.fake.finish_all()
                    assert {name: value.device.type for name, value in batch.items()} == dict.fromkeys(want, "cpu")
                    assert all(torch.equal(batch[name], value) for name, value in want.items())
    finally:
        torch.set_default_device(None)


def test_cuda_is_not_touched_before_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: object) -> None:
        raise AssertionError("CUDA is initialised")

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    for name in ("is_available", "init", "current_device", "device_count"):
        monkeypatch.setattr(torch.cuda, name, touched)
    client = PrepClient(SOURCE, OPS, inline=True, device="cuda", **SPEC)
    with pytest.raises(AssertionError, match="initialised"):
        len(client)


def test_batches_on_a_device_are_cut_to_their_longest_row(tmp_path: Path) -> None:
    """By lengths that are read on the host, so that nobody waits for the device."""
    (tmp_path / "a.txt").write_text("\n".join(lines(13)))
    ops = [Tokenize(vocabulary(tmp_path / "words")), Truncate(20), PadTokens(20, trim=True)]
    given: dict[str, Any] = {**SPEC, "batch_size": 4}
    spec = make_spec(TextLines(tmp_path / "a.txt"), ops, **given)
    device = FakeDevice()
    feed = InlineFeed(spec, ResumePoint(), lambda _samples: None)
    session = Session(feed.listing.samples, 0, feed.epoch_start, feed.position, spec.shape)
    feed.attach(session)
    small = {"length": torch.int64, "index": torch.int64}
    made = DeviceCopier("cuda", looks_of(spec.pipeline, Finish()), 4, finish=Finish(), engine=device, small=small)
    maker = CudaBatchMaker(session, feed, made, spec.pipeline.trims)
    with PrepClient(TextLines(tmp_path / "a.txt"), ops, inline=True, fields="dict", **given) as client:
        for expected in client:
            fields = next_step(maker, session).fields
            device.finish_all()
            assert (
                expected["tokens"].shape == expected["mask"].shape == (len(expected["index"]), expected["length"].max())
            )
            assert all(torch.equal(fields[name], each) for name, each in expected.items())
    maker.close()
