"""Waiting for a fact, with a generous end that only turns a hang into a failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 120.0


def wait_until(predicate: Callable[[], T], timeout_s: float = PATIENCE_S, why: Callable[[], object] = lambda: "") -> T:
    """What `predicate` returns, once it is true.

    Args:
        predicate: Asked again and again.
        timeout_s: When to give up.
        why: Asked for more words when giving up.
    """
    deadline_s = time.monotonic() + timeout_s
    while not (found := predicate()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {why()}"
        time.sleep(0.01)
    return found
