"""At which scale a part of a JPEG is decoded: an inverse DCT of fewer coefficients makes a smaller image for less.

Sizes alone decide, before anything is decoded, because the bytes of a row depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence

SCALES = (8, 4, 2)
"""A half, a quarter, an eighth, for which libjpeg-turbo has fast kernels. Greatest first."""

RESIDUAL = 3.5
"""The least factor by which the antialiased resize still shrinks a scaled part.

The DCT cuts frequencies off sharply and the resize's filter does not: the more the resize shrinks, the less that shows.
The goal is 50 dB. On mosaics of photos with detail in every pixel, rows at this limit are 50.6 to 54 dB from those of a
whole decode (the worst 49); with 3 they are at 49.6 to 52, with 2 at 45.
"""

LEAST = 64
"""Parts with a shorter side are not scaled. There is little to gain; below 8 pixels two of libjpeg's scales give the
same size, and libjpeg does not interpolate fewer than three samples of chroma in a row.
"""


def scale_for(rows: int, columns: int, size: tuple[int, int]) -> int:
    """Return the scale, 1, 2, 4 or 8, at which `rows` x `columns` pixels may be decoded to be resized to `size`."""
    if rows < LEAST or columns < LEAST:
        return 1
    most = min(rows / size[0], columns / size[1]) / RESIDUAL
    return next((scale for scale in SCALES if scale <= most), 1) if most >= SCALES[-1] else 1


def scale_of(scale: int, samplings: Sequence[tuple[int, int]]) -> int:
    """Return the scale for a JPEG with these samplings (down, across), if `scale` is right for the usual kinds.

    At a scale, chroma of 4:2:0 comes out of the inverse DCT as large as luma. Chroma that is subsampled more in one
    direction than in the other (4:2:2, 4:1:1) does not: it is interpolated after the DCT, as at full size. The resize
    must still shrink such chroma by `RESIDUAL`, and it is scaled to a half at most: drawings in strong colours were at
    38 dB with more, and at 49 with this.
    """
    if not (samplings and all(down and across for down, across in samplings)):
        return 1  # the header is broken, and the decoder will complain
    most_down, most_across = max(down for down, _ in samplings), max(across for _, across in samplings)
    ratios = [most_down * across / (most_across * down) for down, across in samplings]
    uneven = max(max(ratio, 1 / ratio) for ratio in ratios)
    if uneven == 1:
        return scale
    return 2 if scale >= 2 * uneven else 1


def divisor(height: int, width: int, scale: int) -> int:
    """Return the greatest scale up to `scale` that divides both sides."""
    while height % scale or width % scale:
        scale //= 2
    return scale


def scaled(length: int, scale: int) -> int:
    """Return how many pixels a decoder makes from `length`."""
    return -(-length // scale)
