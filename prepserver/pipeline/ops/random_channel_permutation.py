"""`RandomChannelPermutation`: channels in random order."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomChannelPermutation(Op):
    """Put the channels in a random order."""
