"""At what scale a part of a JPEG is decoded: an inverse DCT of fewer coefficients makes a smaller image for less.

Sizes alone decide, before anything is decoded: a row's bytes hang on it. Knows numbers, no pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

SCALES = (8, 4, 2)
"""A half, a quarter, an eighth: for these, libjpeg-turbo has fast kernels. Greatest first."""

RESIDUAL = 3.5
"""What the antialiased resize is left to shrink by, at least.

The DCT cuts frequencies off sharply, the resize's filter does not; the more of it is left, the less that shows. On
mosaics of photos with detail in every pixel, rows at this very limit are 50.6 to 54 dB from those of a whole decode
(the worst 49), where the goal is 50; with 3 they are 49.6 to 52, with 2 they are 45.
"""

LEAST = 64
"""Parts with a shorter side are decoded at their size. There is little to gain; below 8 pixels two of libjpeg's scales
give the same size, and where fewer than three samples of chroma are left in a row, libjpeg does not interpolate them.
"""


def scale_for(rows: int, columns: int, size: tuple[int, int]) -> int:
    """Return the scale, 1, 2, 4 or 8, at which `rows` x `columns` pixels may be decoded to be resized to `size`."""
    if rows < LEAST or columns < LEAST:
        return 1
    most = min(rows / size[0], columns / size[1]) / RESIDUAL
    return next((scale for scale in SCALES if scale <= most), 1) if most >= SCALES[-1] else 1


def scale_of(scale: int, samplings: Sequence[tuple[int, int]]) -> int:
    """Return the scale for a JPEG of such components where `scale` is right for one of the usual kinds.

    Chroma of 4:2:0 comes out of the inverse DCT as large as luma: at a scale it has pixels of its own. What is
    subsampled in one direction more than in the other (4:2:2, 4:1:1) does not, and is interpolated after the DCT as at
    full size. Such chroma is left as much to shrink by as all else is, and more than at a half it is not: drawings of
    strong colours were at 38 dB, and at 49 with a quarter.

    Args:
        scale: From `scale_for`.
        samplings: (down, across) of each component, from the header.
    """
    if not (samplings and all(down and across for down, across in samplings)):
        return 1  # a broken header, of which the decoder will complain
    most_down, most_across = max(down for down, _ in samplings), max(across for _, across in samplings)
    ratios = [most_down * across / (most_across * down) for down, across in samplings]
    uneven = max(max(ratio, 1 / ratio) for ratio in ratios)
    if uneven == 1:
        return scale
    return 2 if scale >= 2 * uneven else 1


def divisor(height: int, width: int, scale: int) -> int:
    """Return the greatest scale, no more than `scale`, that divides both sides."""
    while height % scale or width % scale:
        scale //= 2
    return scale


def scaled(length: int, scale: int) -> int:
    """Return how many pixels a decoder makes of `length`."""
    return -(-length // scale)
