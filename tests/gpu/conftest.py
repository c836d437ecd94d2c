"""Skips this folder where torch sees no CUDA device, but for what also runs on the fake one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.gpu.segment import Segment


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent != here or "[fake" in item.name or "-fake" in item.name:
            continue
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture
def device() -> torch.device:
    torch.cuda.init()  # type: ignore[no-untyped-call,unused-ignore]
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture
def segment() -> Iterator[Segment]:
    with Segment.create(32 << 20) as made:
        yield made
