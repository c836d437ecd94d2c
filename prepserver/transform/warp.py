"""Images seen through a matrix: turned, sheared, scaled, shifted, in perspective.

Coordinates and blends are computed in doubles by sums and products that are not fused, so a row has the same bytes on
every CPU. `prepserver.transform.native` gives the same bytes of photos in a tenth of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from prepserver.pipeline.affine import Matrix
from prepserver.transform.moves import Warp
from prepserver.transform.native import kernels
from prepserver.transform.stage import Array, Drawn

_BAND_PIXELS = 1 << 16  # pixels made at once: each takes some 100 bytes on the way

Shown = Callable[[int, int], tuple[Array, Array]]
"""From the first of some rows of a result and their number to x and y of the points that their pixels show."""


def warped(matrix: Matrix, size: tuple[int, int], interpolation: str, fill: tuple[float, ...]) -> Drawn:
    """Return the decision to warp an image to the size (height, width)."""
    step = partial(warp, matrix=matrix, size=size, interpolation=interpolation, fill=fill)
    return Drawn(step, *size, moves=(Warp(matrix, *size, fill),))


def warp(
    image: Array, into: Array | None, matrix: Matrix, size: tuple[int, int], interpolation: str, fill: tuple[float, ...]
) -> Array:
    """Return `image`, (H, W, C), seen through a matrix, which maps points of the result to points of the image.

    The result has the (height, width) `size`; it goes `into` an array of that shape which does not overlap `image`,
    None for a new one. A pixel whose centre shows no point of the image gets the `fill`: one value for all channels or
    one for each. `interpolation` is "nearest" or "bilinear"; at the edges, "bilinear" repeats the last pixel,
    as Pillow does; torchvision on tensors blends it with the fill.
    """
    channels = image.shape[2]
    result = np.empty((*size, channels), image.dtype) if into is None else into
    compiled = kernels()
    if compiled is not None and image.dtype == np.uint8 and channels in (1, 3):
        colour = np.broadcast_to(np.array(fill, np.uint8), (channels,))
        if channels > 1 and image.strides[2] != 1:
            image = np.ascontiguousarray(image)
        if compiled.warp(image, matrix, interpolation == "bilinear", colour.tobytes(), result):
            return result
    return sampled(image, partial(_shown, matrix, size[1]), interpolation, fill, result)


def sampled(image: Array, shown: Shown, interpolation: str, fill: tuple[float, ...], result: Array) -> Array:
    """Return `result`, (h, w, C), filled with the points of `image` that its pixels show; arguments as for `warp`."""
    rows = max(1, _BAND_PIXELS // result.shape[1])
    for top in range(0, len(result), rows):
        band = result[top : top + rows]
        across, down = shown(top, len(band))
        inside = (across >= 0.0) & (across < image.shape[1]) & (down >= 0.0) & (down < image.shape[0])
        across, down = across[inside], down[inside]
        band[...] = np.array(fill).astype(band.dtype)
        if interpolation == "nearest":
            band[inside] = image[down.astype(np.intp), across.astype(np.intp)]
        else:
            band[inside] = _blended(image, across, down)
    return result


def _shown(matrix: Matrix, columns: int, top: int, rows: int) -> tuple[Array, Array]:
    """Return x and y of the points that rows of the result show."""
    a, b, c, d, e, f, g, h = matrix
    x = np.arange(columns) + 0.5
    y = (np.arange(top, top + rows) + 0.5)[:, None]
    across, down = a * x + (b * y + c), d * x + (e * y + f)
    if g or h:
        with np.errstate(all="ignore"):
            w = g * x + (h * y + 1.0)
            across, down = across / w, down / w
    return across, down


def _blended(image: Array, across: Array, down: Array) -> Array:
    """Return the mean of the four pixels around each point, in steps of a 256th of a pixel."""
    left, right, near_right = _between(across, image.shape[1])
    above, below, near_below = _between(down, image.shape[0])
    upper, lower = (
        image[line, left].astype(np.float64) * (256 - near_right) + image[line, right].astype(np.float64) * near_right
        for line in (above, below)
    )
    blended: Array = (upper * (256 - near_below) + lower * near_below) * 2.0**-16
    return blended if image.dtype.kind == "f" else np.floor(blended + 0.5)


def _between(at: Array, length: int) -> tuple[Array, Array, Array]:
    """Return the pixels before and after each place on a line, and how near the latter is, in 256ths."""
    steps = np.floor((at - 0.5) * 256.0 + 0.5).astype(np.int64)
    first = steps >> 8
    return first.clip(0, length - 1), (first + 1).clip(0, length - 1), (steps & 255).astype(np.int32)[:, None]


def turned_size(matrix: Matrix, full: tuple[int, int]) -> tuple[int, int]:
    """Return the (height, width) that hold an image of the size `full` turned by a matrix, as torchvision does."""
    a, b, _, c, d, *_ = matrix
    corners = [(side * full[1] * 0.5, other * full[0] * 0.5) for side in (-1, 1) for other in (-1, 1)]
    across = [a * x + b * y + full[1] * 0.5 for x, y in corners]
    down = [c * x + d * y + full[0] * 0.5 for x, y in corners]
    # Rounded, so that the last bits of a quarter turn's sine add no line.
    height, width = (math.ceil(round(max(at), 4)) - math.floor(round(min(at), 4)) for at in (down, across))
    return height, width


def perspective(full: tuple[int, int], corners: Sequence[tuple[float, float]]) -> Matrix | None:
    """Return the matrix that shows the image's corner pixels, clockwise from top left, at the points `corners`.

    Returns:
        None where the image has one row or column, or three corners lie on a line.
    """
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = corners
    # The unit square to the corners (Heckbert 1989), and its inverse by the adjugate.
    sum_x, sum_y = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3
    determinant = (x1 - x2) * (y3 - y2) - (x3 - x2) * (y1 - y2)
    if min(full) < 2 or determinant == 0.0:
        return None
    g = (sum_x * (y3 - y2) - (x3 - x2) * sum_y) / determinant
    h = ((x1 - x2) * sum_y - sum_x * (y1 - y2)) / determinant
    a, b, c = x1 - x0 + g * x1, x3 - x0 + h * x3, x0
    d, e, f = y1 - y0 + g * y1, y3 - y0 + h * y3, y0
    last = a * e - b * d
    if last == 0.0:
        return None
    across, down = (full[1] - 1) / last, (full[0] - 1) / last
    return (
        (e - f * h) * across, (c * h - b) * across, (b * f - c * e) * across,
        (f * g - d) * down, (a - c * g) * down, (c * d - a * f) * down,
        (d * h - e * g) / last, (b * g - a * h) / last,
    )  # fmt: skip


def warped_points(points: Array, matrix: Matrix) -> Array:
    """Return where points (..., 2), x and y in pixels, of the plane before a `Warp` are after it: (..., 2), float64."""
    a, b, c, d, e, f, g, h = matrix
    # The adjugate is the inverse up to a factor, which a point does not see.
    x, y = points[..., 0].astype(np.float64), points[..., 1].astype(np.float64)
    across = (e - f * h) * x + (c * h - b) * y + (b * f - c * e)
    down = (f * g - d) * x + (a - c * g) * y + (c * d - a * f)
    scale = (d * h - e * g) * x + (b * g - a * h) * y + (a * e - b * d)
    with np.errstate(divide="ignore", invalid="ignore"):  # perspective moves some points to infinity
        moved: Array = np.stack([across, down], axis=-1) / scale[..., None]
    return moved
