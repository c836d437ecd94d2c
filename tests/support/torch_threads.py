"""What must be limited to one thread of torch, and give the others back however it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch


def interrupted(*_: Any) -> None:
    """In place of a computation: Ctrl-C while torch is limited."""
    assert torch.get_num_threads() == 1
    raise KeyboardInterrupt


@contextlib.contextmanager
def interrupt_leaves_threads() -> Iterator[None]:
    """Its body ends by `interrupted`, and torch has its threads again."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
