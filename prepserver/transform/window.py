"""A rectangle of an image that may reach over its edges: the basis of crops, centre crops and padding."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prepserver.transform.stage import Array


def window(
    image: Array, into: Array | None, box: tuple[int, int, int, int], mode: str, fill: tuple[float, ...]
) -> Array:
    """Return the part `box` of `image`, (H, W, C), as if the image continued beyond its edges.

    `box` is (top, left, height, width) in pixels; top and left may be negative. A part inside the image is a view, at
    no cost; any other is written to `into`, (height, width, C), or to a new array. `mode` is "constant", "edge",
    "reflect" or "symmetric", and `fill` the value of constant padding, one for all channels or one for each.
    """
    top, left, height, width = box
    full = image.shape[:2]
    bottom, right = top + height, left + width
    if top >= 0 and left >= 0 and bottom <= full[0] and right <= full[1]:
        return image[top:bottom, left:right]
    result = np.empty((height, width, image.shape[2]), image.dtype) if into is None else into
    if mode == "constant":
        result[...] = np.array(fill).astype(image.dtype)
        inner_top, inner_bottom = max(top, 0), min(bottom, full[0])
        inner_left, inner_right = max(left, 0), min(right, full[1])
        if inner_top < inner_bottom and inner_left < inner_right:
            result[inner_top - top : inner_bottom - top, inner_left - left : inner_right - left] = image[
                inner_top:inner_bottom, inner_left:inner_right
            ]
    else:
        rows = mirrored(top, height, full[0], mode)
        columns = mirrored(left, width, full[1], mode)
        result[...] = image[rows[:, None], columns[None, :]]
    return result


def mirrored(start: int, count: int, length: int, mode: str) -> npt.NDArray[np.int64]:
    """Return which of a line's `length` pixels stand at `start`, which may be negative, to `start + count`.

    "edge" repeats the last pixel, "reflect" mirrors without it, "symmetric" with it. Padding wider than the image keeps
    mirroring, where torchvision gives up.
    """
    at = np.arange(start, start + count, dtype=np.int64)
    if mode == "edge" or length == 1:
        return at.clip(0, length - 1)
    period = 2 * length if mode == "symmetric" else 2 * length - 2
    at %= period
    return np.minimum(at, period - at - (1 if mode == "symmetric" else 0))
