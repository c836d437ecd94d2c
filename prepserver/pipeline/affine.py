"""Matrices through which a plane of pixels is seen; workers and clients warp images by the same ones."""

from __future__ import annotations

import math

Matrix = tuple[float, ...]
"""(a, b, c, d, e, f, g, h). The point (x, y) of the new plane shows the point
((a x + b y + c) / w, (d x + e y + f) / w) of the old one, with w = g x + h y + 1. Pixel 0 reaches from 0 to 1."""


def affine(
    full: tuple[int, int],
    angle: float = 0.0,
    translate: tuple[float, float] = (0.0, 0.0),
    scale: float = 1.0,
    shear: tuple[float, float] = (0.0, 0.0),
    center: tuple[float, float] | None = None,
    size: tuple[int, int] | None = None,
) -> Matrix:
    """Return the matrix of torchvision's ``affine``, with angles in degrees, clockwise, and places in pixels.

    `full` is the (height, width) of the image. `size` is that of the result, whose centre lies on the image's; None for
    the same size. `translate`, `shear` and `center` are (x, y); None for the image's centre.

    `sin`, `cos` and `tan` may differ in the last bit between C libraries; that moves a pixel once in many images.
    """
    turn, shear_x, shear_y = math.radians(angle), math.radians(shear[0]), math.radians(shear[1])
    a = math.cos(turn - shear_y) / math.cos(shear_y)
    b = -a * math.tan(shear_x) - math.sin(turn)
    c = math.sin(turn - shear_y) / math.cos(shear_y)
    d = -c * math.tan(shear_x) + math.cos(turn)
    a, b, c, d = d / scale, -b / scale, -c / scale, a / scale
    middle_x, middle_y = full[1] * 0.5, full[0] * 0.5
    x, y = center or (middle_x, middle_y)
    # The point (x, y), moved by `translate`, shows the point (x, y).
    height, width = size or full
    from_x, from_y = x + translate[0] + (width - full[1]) * 0.5, y + translate[1] + (height - full[0]) * 0.5
    return a, b, x - (a * from_x + b * from_y), c, d, y - (c * from_x + d * from_y), 0.0, 0.0
