"""The device's whole way in the client, from ring to fields, on a fake device: the bytes of the host's way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from prepclient import PrepClient, RandomHorizontalFlip, RandomResizedCrop, SyntheticImages
from prepclient.device import DeviceStage
from prepclient.feed import Start
from prepclient.finish import Finish, RowLook
from prepclient.inline import InlineFeed
from prepclient.session import Session
from prepclient.spec import make_spec
from prepclient.stages import CudaStage
from tests.support.fake_device import FakeDevice

SOURCE = SyntheticImages(23, size=(40, 50))
OPS = [RandomResizedCrop(16), RandomHorizontalFlip()]
SPEC: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "drop_last": False}
EPOCHS = 3
FINISHES: list[tuple[bool, dict[str, Any]]] = [
    (False, {}), (True, {}), (False, {"normalize": ((0.4, 0.5, 0.6), (0.2, 0.3, 0.2))})
]  # fmt: skip


class LocksEverything:
    """A driver to which all memory is as good."""

    def register(self, address: int, nbytes: int) -> int:
        return 0

    def unregister(self, address: int) -> int:
        return 0

    def describe(self, code: int) -> str:
        return str(code)


def as_views(images: Any) -> tuple[torch.Tensor, ...]:
    return images if isinstance(images, tuple) else (images,)


@pytest.mark.parametrize("views", [1, 2, 5])
@pytest.mark.parametrize(("lend", "finish"), FINISHES)
def test_batches_by_way_of_a_device_are_those_of_the_host(views: int, lend: bool, finish: dict[str, Any]) -> None:
    spec = make_spec(SOURCE, OPS, rank=None, world_size=None, job=None, views=views, **SPEC)
    device = FakeDevice()
    feed = InlineFeed(spec, Start(), lambda _samples: None)
    session = Session(feed.samples, 0, feed.epoch_start, feed.position, spec.shape)
    feed.attach(session)
    look = RowLook.of(spec.pipeline)
    made = DeviceStage("cuda", look, 5, finish=Finish(**finish), zero_copy=lend, engine=device)
    stage = CudaStage(session, feed, lambda: None, made, LocksEverything())
    with PrepClient(SOURCE, OPS, inline=True, fields="dict", views=views, **SPEC, **finish) as client:
        for expected in (batch for _ in range(EPOCHS) for batch in client):
            fields = stage.step(60).fields
            device.finish_all()
            assert isinstance(fields["image"], tuple) == (views > 1)
            for got, want in zip(as_views(fields["image"]), as_views(expected["image"]), strict=True):
                assert torch.equal(got, want)
                assert got.stride() == want.stride()
            assert all(torch.equal(fields[name], expected[name]) for name in ("label", "index"))
    stage.close()


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize(("lend", "finish"), FINISHES)
def test_batches_of_no_rows_come_by_way_of_a_device_and_lent_and_in_fresh_tensors_alike(
    views: int, lend: bool, finish: dict[str, Any]
) -> None:
    """Three samples for two ranks, one at a time: equal numbers of batches leave one without a row."""
    source = SyntheticImages(3, size=(40, 50))
    given: dict[str, Any] = {**SPEC, "batch_size": 1, "rank": 0, "world_size": 2, "job": "pair"}
    spec = make_spec(source, OPS, views=views, **given)
    device = FakeDevice()
    feed = InlineFeed(spec, Start(), lambda _samples: None)
    session = Session(feed.samples, 0, feed.epoch_start, feed.position, spec.shape)
    feed.attach(session)
    made = DeviceStage("cuda", RowLook.of(spec.pipeline), 1, finish=Finish(**finish), zero_copy=lend, engine=device)
    stage = CudaStage(session, feed, lambda: None, made, LocksEverything())
    counts = []
    with PrepClient(source, OPS, inline=True, fields="dict", views=views, zero_copy=lend, **given, **finish) as client:
        for expected in (batch for _ in range(EPOCHS) for batch in client):
            fields = stage.step(60).fields
            device.finish_all()
            counts.append(len(expected["index"]))
            for got, want in zip(as_views(fields["image"]), as_views(expected["image"]), strict=True):
                assert want.shape == (counts[-1], 3, 16, 16)
                assert torch.equal(got, want)
                assert (got.dtype, got.shape) == (want.dtype, want.shape)
            assert all(torch.equal(fields[name], expected[name]) for name in ("label", "index"))
    stage.close()
    assert counts == [0, 1] * EPOCHS
