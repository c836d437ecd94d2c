"""`ColorJitter`: random brightness, contrast, saturation and hue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class ColorJitter(Op):
    """Random brightness, contrast, saturation and hue, in random order.

    A number v means a factor from max(0, 1 - v) to 1 + v (for hue a shift from -v to v); a pair is the range itself.

    Attributes:
        brightness: Range of the factor; (1, 1) leaves it out.
        contrast: As `brightness`.
        saturation: As `brightness`.
        hue: Range of the shift in turns, within -0.5 to 0.5; (0, 0) leaves it out.
    """

    needs_uint8 = True

    brightness: tuple[float, float]
    contrast: tuple[float, float]
    saturation: tuple[float, float]
    hue: tuple[float, float]

    def __init__(
        self,
        brightness: float | Sequence[float] = 0,
        contrast: float | Sequence[float] = 0,
        saturation: float | Sequence[float] = 0,
        hue: float | Sequence[float] = 0,
    ) -> None:
        self._keep(
            brightness=_factor_range("brightness", brightness),
            contrast=_factor_range("contrast", contrast),
            saturation=_factor_range("saturation", saturation),
            hue=_hue_range(hue),
        )


def _factor_range(field: str, value: object) -> tuple[float, float]:
    if isinstance(value, list | tuple):
        return checks.number_range(field, value, 0.0, 1e3)
    spread = checks.number(field, value, 0.0, 1e3)
    return max(0.0, 1.0 - spread), 1.0 + spread


def _hue_range(value: object) -> tuple[float, float]:
    if isinstance(value, list | tuple):
        return checks.number_range("hue", value, -0.5, 0.5)
    spread = checks.number("hue", value, 0.0, 0.5)
    return 0.0 - spread, spread
