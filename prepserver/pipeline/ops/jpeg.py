"""`JPEG`: the traces of compression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class JPEG(Op):
    """Encode and decode the image as a JPEG of random quality (4:2:0).

    Attributes:
        quality: Least and greatest quality, 1 to 100, both included; a number means just that.
    """

    needs_uint8 = True

    quality: tuple[int, int]

    def __init__(self, quality: int | Sequence[int]) -> None:
        given = quality if isinstance(quality, list | tuple) else (quality, quality)
        low, high = (checks.integer("quality", each, 1, 100) for each in checks.items("quality", given, (2,)))
        self._keep(quality=(low, max(low, checks.integer("quality", high, low, 100))))
