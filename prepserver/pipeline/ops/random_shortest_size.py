"""`RandomShortestSize`: one of some sizes at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from prepserver.pipeline import checks
from prepserver.pipeline.kinds import Size
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomShortestSize(Op):
    """Resize, antialiased, so that the shorter side has one of some lengths and the longer one is not too long.

    Attributes:
        min_size: Lengths of the shorter side in pixels, at most 64 of them; one int means just that.
        max_size: Limit on the longer side in pixels; None for none.
        interpolation: As in `RandomResizedCrop`.
    """

    moves = True
    needs_uint8 = True

    min_size: tuple[int, ...]
    max_size: int | None
    interpolation: str

    def __init__(
        self,
        min_size: int | Sequence[int],
        max_size: int | None = None,
        interpolation: str | Enum = "bilinear",
        antialias: bool = True,
    ) -> None:
        checks.antialias(antialias)
        given = min_size if isinstance(min_size, list | tuple) else (min_size,)
        self._keep(
            min_size=tuple(checks.side("min_size", each) for each in checks.items("min_size", given, range(1, 65))),
            max_size=None if max_size is None else checks.side("max_size", max_size),
            interpolation=checks.interpolation("interpolation", interpolation),
        )

    def size_after(self, size: Size | None) -> Size | None:
        return None
