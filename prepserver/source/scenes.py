"""Procedural pictures with the statistics of photos, made of integers only.

Natural pictures have about the same contrast at every scale (power falls as 1/f^2: D. Field, "Relations between the
statistics of natural images...", 1987), calm and busy regions, and colours that vary less and more slowly than
brightness. A decoder works about as hard on a picture with these properties as on a photo of the same size; it does not
on flat pictures or white noise.

All arithmetic is on integers, from PCG64's raw numbers: equal seeds give equal pixels on every machine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

I32Array = npt.NDArray[np.int32]

# Contrast of the finest octaves, the finest first, in 1/256 of the others: a lens and a sensor blur detail.
# Fitted so that JPEGs of quality 95 have the 0.58 bytes per pixel of ImageNet's photos, whose power falls
# as 1/f^2.5 where ours falls as 1/f^3.
_BRIGHTNESS_TAPER = (64, 128, 192)
_COLOUR_TAPER = (0, 32, 96)


def scene(seed: int, height: int, width: int, number: int) -> npt.NDArray[np.uint8]:
    """Return picture `number` of a dataset with this seed: RGB, uint8, shape (height, width, 3)."""
    # SeedSequence and PCG64's raw output are stable by numpy's policy (NEP 19); Generator's methods are not.
    bits = np.random.PCG64(np.random.SeedSequence((seed, height, width, number)))
    busy = np.clip(_octaves(bits, height, width, (0, 0, 0, 0)) + 128, 16, 256)
    brightness = (_octaves(bits, height, width, _BRIGHTNESS_TAPER, busy) >> 1) + 128
    blue = _octaves(bits, height, width, _COLOUR_TAPER) >> 3
    red = _octaves(bits, height, width, _COLOUR_TAPER) >> 3
    # JFIF's YCbCr to RGB, with its factors in 1/256.
    rgb = np.empty((height, width, 3), dtype=np.int32)
    rgb[..., 0] = brightness + (359 * red >> 8)
    rgb[..., 1] = brightness - ((88 * blue + 183 * red) >> 8)
    rgb[..., 2] = brightness + (454 * blue >> 8)
    return np.clip(rgb, 0, 255).astype(np.uint8)


def _octaves(
    bits: np.random.PCG64, height: int, width: int, taper: tuple[int, ...], busy: I32Array | None = None
) -> I32Array:
    """Return a sum of noise with an equal share of contrast per octave, about -400 .. 400, zero mean.

    `taper` is the contrast of the finest octaves in 1/256, the finest first; the others have 256. `busy` is the local
    contrast of the tapered octaves in 1/256, int32, (height, width).
    """
    sizes = [(height, width)]
    while max(sizes[-1]) > 4:
        sizes.append((-(-sizes[-1][0] // 2), -(-sizes[-1][1] // 2)))
    total = np.zeros(sizes[-1], dtype=np.int32)
    for level in range(len(sizes) - 1, -1, -1):
        rows, columns = sizes[level]
        if level < len(sizes) - 1:
            total = _double(_double(total, 0)[:rows], 1)[:, :columns]
        gain = taper[level] if level < len(taper) else 256
        if gain:
            noise = _noise(bits, rows, columns) * gain >> 8
            if busy is not None and level < 4:
                noise = noise * busy[:: 1 << level, :: 1 << level] >> 8
            total = total + noise
    return total


def _noise(bits: np.random.PCG64, rows: int, columns: int) -> I32Array:
    """Return uniform numbers -128 .. 127, shape (rows, columns)."""
    words = bits.random_raw(-(-rows * columns // 8)).astype("<u8")
    return words.view(np.int8)[: rows * columns].reshape(rows, columns).astype(np.int32)


def _double(values: I32Array, axis: int) -> I32Array:
    """Double the resolution along an axis by linear interpolation, with the edges repeated."""
    values = np.moveaxis(values, axis, 0)
    before = np.concatenate((values[:1], values[:-1]))
    after = np.concatenate((values[1:], values[-1:]))
    out = np.empty((2 * len(values), *values.shape[1:]), dtype=np.int32)
    out[0::2] = (3 * values + before) >> 2
    out[1::2] = (3 * values + after) >> 2
    return np.moveaxis(out, 0, axis)
