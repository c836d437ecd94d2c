"""`GaussianBlur`: softer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import Op


@dataclass(frozen=True, slots=True, init=False)
class GaussianBlur(Op):
    """Blur with a Gaussian kernel; beyond its edges the image is reflected.

    Attributes:
        kernel_size: (width, height) of the kernel in pixels, odd, at most 255; an int means a square.
        sigma: Least and greatest standard deviation in pixels; a number means just that.
    """

    needs_uint8 = True

    kernel_size: tuple[int, int]
    sigma: tuple[float, float]

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        given = kernel_size if isinstance(kernel_size, list | tuple) else (kernel_size,)
        sides = [checks.integer("kernel_size", each, 1, 255) for each in checks.items("kernel_size", given, (1, 2))]
        if any(side % 2 == 0 for side in sides):
            raise SpecError("kernel_size", kernel_size, "must be odd")
        span = sigma if isinstance(sigma, list | tuple) and len(sigma) == 2 else (sigma, sigma)
        if isinstance(sigma, list | tuple) and len(sigma) == 1:
            span = (sigma[0], sigma[0])
        self._keep(kernel_size=(sides[0], sides[-1]), sigma=checks.number_range("sigma", span, 1e-3, 1e3))
