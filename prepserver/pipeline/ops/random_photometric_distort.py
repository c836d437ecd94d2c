"""`RandomPhotometricDistort`: colours changed at random, as for SSD."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class RandomPhotometricDistort(Op):
    """Change brightness, contrast, saturation, hue and the order of the channels, each with probability `p`.

    Attributes:
        brightness: Least and greatest factor.
        contrast: As `brightness`.
        saturation: As `brightness`.
        hue: Least and greatest shift in turns, within -0.5 to 0.5.
        p: Probability of each change, 0 to 1.
    """

    needs_uint8 = True

    brightness: tuple[float, float]
    contrast: tuple[float, float]
    saturation: tuple[float, float]
    hue: tuple[float, float]
    p: float

    def __init__(
        self,
        brightness: Sequence[float] = (0.875, 1.125),
        contrast: Sequence[float] = (0.5, 1.5),
        saturation: Sequence[float] = (0.5, 1.5),
        hue: Sequence[float] = (-0.05, 0.05),
        p: float = 0.5,
    ) -> None:
        self._keep(
            brightness=checks.number_range("brightness", brightness, 0.0, 1e3),
            contrast=checks.number_range("contrast", contrast, 0.0, 1e3),
            saturation=checks.number_range("saturation", saturation, 0.0, 1e3),
            hue=checks.number_range("hue", hue, -0.5, 0.5),
            p=checks.probability(p),
        )
