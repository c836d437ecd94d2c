"""Headspace: held batches are replayed inside the loop, and the stream is what it would have been."""

from __future__ import annotations

import time
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from prepclient import InvalidSpec, PrepClient, RandomResizedCrop, Sharding, SyntheticImages
from prepclient.headspace import _WARM_STEPS, Headspace
from prepclient.session import Totals

N, BATCH = 60, 2
EPOCH = N // BATCH


def client(headspace: int = 0, **more: Any) -> PrepClient:
    arguments: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": 3, "fields": ("image", "index")}
    return PrepClient(
        SyntheticImages(N, size=(16, 16)), [RandomResizedCrop(8)], inline=True, headspace=headspace,
        **(arguments | more),
    )  # fmt: skip


def batches(train: PrepClient, epochs: int = 1, pause_s: float = 0.0) -> list[list[torch.Tensor]]:
    """Copies of all batches; the loop spoils its own."""
    had = []
    for _ in range(epochs):
        for images, index in train:
            had.append([images.clone(), index.clone()])
            if pause_s:
                time.sleep(pause_s)
            if not train.stats()["headspace"]:
                images.zero_()
    return had


def without(had: list[list[torch.Tensor]], replays: slice) -> list[list[torch.Tensor]]:
    return [batch for number, batch in enumerate(had) if number not in range(*replays.indices(len(had)))]


def rings(train: PrepClient) -> list[np.ndarray[Any, Any]]:
    feed = train._attachment.feed
    assert feed is not None
    return [link.rows.writable_arrays()["image"] for link in feed.rows.links]


def same(one: list[list[torch.Tensor]], two: list[list[torch.Tensor]]) -> bool:
    return len(one) == len(two) and all(
        torch.equal(a, b) for x, y in zip(one, two, strict=True) for a, b in zip(x, y, strict=True)
    )


@pytest.mark.parametrize(("steps", "begins"), [(5, _WARM_STEPS + 5), (200, EPOCH)])
def test_replays_are_batches_held_and_the_rest_is_the_stream(steps: int, begins: int) -> None:
    """In an epoch that is too short for the steps before, the replay is at its end."""
    with client() as plain, client(steps) as train:
        assert train.stats()["headspace"] is None
        assert len(train) == EPOCH + steps
        had = batches(train, 2)
        replays = slice(begins, begins + steps)
        assert same(without(had, replays), batches(plain, 2))
        held = had[begins - 2 : begins]
        assert all(any(same([replay], [one]) for one in held) for replay in had[replays])
        assert len(train) == EPOCH
        assert plain.stats()["headspace"] is None
        assert train.stats()["images"] == 2 * N


@pytest.mark.parametrize("zero_copy", [False, True])
def test_replays_of_numpys_arrays_are_copies(zero_copy: bool) -> None:
    """What a loop writes into its batches is in no replay, and neither is memory that was lent."""
    had, begins = [], _WARM_STEPS + 5
    with client(5, output="numpy", shuffle=False, zero_copy=zero_copy) as train:
        for number, (images, index) in enumerate(train):
            had.append(index.tolist())
            if not zero_copy:
                index[:] = -1
            elif begins <= number < begins + 5:
                assert not any(np.shares_memory(images, ring) for ring in rings(train))
    stream = [[BATCH * n, BATCH * n + 1] for n in range(EPOCH)]
    assert had[:begins] + had[begins + 5 :] == stream
    assert all(replay in stream[begins - 2 : begins] for replay in had[begins : begins + 5])


def test_the_length_between_epochs_is_the_next_ones() -> None:
    with client(5) as train:
        steps = iter(train)
        for _ in range(EPOCH + 5):
            next(steps)
            assert len(train) == EPOCH + 5
        assert next(steps, None) is None
        assert len(train) == EPOCH


def test_an_epoch_of_empty_batches_has_no_rate() -> None:
    """Of 9 samples, some of 8 ranks get one, and an empty batch."""
    for rank in range(8):
        of_rank: dict[str, Any] = {"sharding": Sharding(rank, 8), "job": "x", "batch_size": 1}
        source = SyntheticImages(9, size=(16, 16))
        with PrepClient(source, [RandomResizedCrop(8)], inline=True, headspace=2, **of_rank) as train:
            assert len(list(train)) == 4
            assert train.stats()["headspace"]["steps"] == 2


def test_it_tells_what_an_infinitely_fast_loader_would_give(caplog: pytest.LogCaptureFixture) -> None:
    with client(10) as train, caplog.at_level("INFO", "prepclient"):
        batches(train, pause_s=0.01)
        found = train.stats()["headspace"]
    assert found["steps"] == 10
    assert 0 < found["now_images_per_s"] < BATCH / 0.01
    assert 0 < found["images_per_s"] < BATCH / 0.01
    # of rates that are rounded, which shows where a busy machine makes them low
    least, most = ((found["images_per_s"] + off) / (found["now_images_per_s"] - off) for off in (-0.06, 0.06))
    assert least - 0.001 < 1 + found["gain_fraction"] < most + 0.001
    (said,) = [r.getMessage() for r in caplog.records if "headspace" in r.getMessage()]
    assert "an infinitely fast loader would give" in said


def test_a_checkpoint_amid_replays_is_of_the_stream() -> None:
    with client() as plain, client(5) as train:
        whole = batches(plain)
        steps = iter(train)
        for _ in range(_WARM_STEPS + 5 + 3):
            next(steps)
        assert len(steps) == EPOCH + 5 - (_WARM_STEPS + 5 + 3)  # type: ignore[arg-type]
        state = train.state_dict()
        plain.load_state_dict(state)
        assert same(batches(plain), whole[_WARM_STEPS + 5 :])


def test_an_epoch_left_amid_replays_ends_the_measurement() -> None:
    with client(5) as train:
        for number, _ in enumerate(train):
            if number == _WARM_STEPS + 5 + 2:
                break
        assert len(train) == EPOCH
        assert len(list(train)) == len(train) == EPOCH
        assert train.stats()["headspace"] is None


def test_a_closed_client_holds_no_batch() -> None:
    with client(5) as train:
        steps = iter(train)
        for _ in range(_WARM_STEPS + 5 + 2):
            next(steps)
        held = [weakref.ref(batch[0]) for batch in train._loop.headspace._held]
        assert [one() is None for one in held] == [False] * 2
        train.close()
        assert [one() is None for one in held] == [True] * 2


def test_it_waits_for_the_gpu_that_has_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one may be current."""
    waited: list[torch.device | None] = []
    for name in ("is_available", "is_initialized"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    for device, expected in ((torch.device("cuda", 1), torch.device("cuda", 1)), (torch.device("cpu"), None)):
        one = Headspace(1, device)
        one.begin_epoch(Totals(), 1)
        one.saw(torch.zeros(1), Totals(), Totals(1, 1))
        assert one.replay(Totals(1, 1)) is not None
        assert one.replay(Totals(1, 1)) is None
        assert waited == [expected] * 2
        waited.clear()


def test_the_number_of_steps_is_checked() -> None:
    with pytest.raises(InvalidSpec, match="headspace"):
        client(-1)
