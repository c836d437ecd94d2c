"""An exception at any line of `next()`, as a signal handler may raise it: the step has happened or it has not.

Whatever thread goes on then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import CodeType, FrameType
from typing import Any

import pytest
import torch

from prepclient import PrepClient, RandomHorizontalFlip, RandomResizedCrop, SyntheticImages
from tests.support import leaks
from tests.support.device_client import DeviceClient
from tests.support.server import Server

pytestmark = pytest.mark.integration

SOURCE = SyntheticImages(2400, size=(20, 20))
OPS = [RandomResizedCrop(8), RandomHorizontalFlip()]
# A step that was broken off attaches again, up to 500 times in a test, and `prefetch` keeps what is then made small.
SPEC: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 5, "fields": "dict", "prefetch": 24}
WAYS: dict[str, dict[str, Any]] = {
    "fresh tensors": {"on_error": "mask", "views": 2},
    "lent views": {"zero_copy": True, "fields": ("image", "index")},
    "a device": {"views": 2, "on_error": "mask"},
    "a device, lent": {"zero_copy": True},
    "this process": {"inline": True, "batch_size": 1},  # a step has more lines: it makes the rows, too
}


# Each way is broken off at a third of the lines; together they come to all lines that they share. All ways at all lines
# are for `make soak`.
SHARE = 3


class Interrupted(BaseException):
    """What the handler raises."""


def next_interrupted(broken: set[tuple[CodeType, int]], is_meant: Callable[[int], bool], batches: Iterator[Any]) -> Any:
    """``next(batches)`` with an exception at the first chosen line that is not yet in `broken`, or without one."""

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        if frame.f_code.co_filename.endswith(("weakref.py", "blocks.py")) and frame.f_code.co_name != "take":
            return None  # a finalizer: Python reports what it raises, and goes on
        line = (frame.f_code, frame.f_lineno)
        if event == "line" and is_meant(frame.f_lineno) and line not in broken:
            broken.add(line)
            sys.settrace(None)
            raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return next(batches)
    finally:
        sys.settrace(before)


def copied(client: PrepClient, batch: Any) -> list[torch.Tensor]:
    if isinstance(client, DeviceClient):
        client.fake.finish_all()
    fields = batch.values() if isinstance(batch, dict) else batch
    return [part.clone() for field in fields for part in (field if isinstance(field, tuple) else (field,))]


@pytest.mark.parametrize("way", WAYS)
def test_a_step_broken_off_at_a_line_did_not_happen(way: str, server: Server) -> None:
    ours = list(WAYS).index(way) % SHARE
    check_broken_off(way, lambda line: line % SHARE == ours, server)


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_a_step_broken_off_at_any_line_did_not_happen(way: str, server: Server) -> None:
    check_broken_off(way, lambda line: True, server)


def check_broken_off(way: str, is_meant: Callable[[int], bool], server: Server) -> None:
    spec = {"job": "interrupted", "runtime_dir": server.runtime_dir, **SPEC, **WAYS[way]}
    make: Callable[..., PrepClient] = DeviceClient if "device" in way else PrepClient
    with PrepClient(SOURCE, OPS, **{**spec, "inline": True}) as undisturbed:
        epoch = iter(undisturbed)
        states = [undisturbed.state_dict()]
        expected = []
        for batch in epoch:
            expected.append(copied(undisturbed, batch))
            states.append(undisturbed.state_dict())
    with make(SOURCE, OPS, **spec) as client, ThreadPoolExecutor(1) as other:
        batches, had = iter(client), 0
        broken: set[tuple[CodeType, int]] = set()
        while True:
            try:
                batch = next_interrupted(broken, is_meant, batches)
            except Interrupted:
                assert client.state_dict() == states[had]
                assert client.stats()["batches"] == had
                assert len(batches) == len(expected) - had  # type: ignore[arg-type]
                ran_through = False
                batch = other.submit(next, batches).result()
            else:
                ran_through = True
            for got, want in zip(copied(client, batch), expected[had], strict=True):
                assert torch.equal(got, want)
            had += 1
            assert client.state_dict() == states[had]
            if ran_through:
                break
        assert len(broken) > 100 / SHARE
        for batch in batches:
            for got, want in zip(copied(client, batch), expected[had], strict=True):
                assert torch.equal(got, want)
            had += 1
        assert had == len(expected)
        assert client.stats()["images"] == SOURCE.n
    del batch, got  # lent
    assert leaks.rings(os.getpid()) == {}
