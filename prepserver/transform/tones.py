"""Changes of values by tables and neighbourhoods: posterize, equalize, sharpen, blur. torchvision v2's formulas.

Each takes an image, (H, W, C) uint8, and returns another one, or its input where nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from PIL import Image as Picture

from prepserver.transform.color import mapped
from prepserver.transform.stage import Array
from prepserver.transform.window import mirrored

Change = Callable[[Array], Array]

_BAND_VALUES = 1 << 16
"""Values that are computed at once: a quarter of a megabyte of floats, which stay in the cache."""

_NEGLIGIBLE = 1e-3  # tails of a Gaussian kernel that together add fewer levels than this are left out


def invert(image: Array) -> Array:
    """Return 255 - image."""
    inverted: Array = ~image
    return inverted


def permuted(image: Array, order: list[int]) -> Array:
    """Return `image` with its three channels in another order."""
    result: Array = image if image.shape[2] == 1 else np.take(image, order, 2)
    return result


def posterize(image: Array, bits: int) -> Array:
    """Return `image` with the highest `bits` of each value."""
    kept: Array = image & np.uint8(256 - (1 << 8 - bits))
    return kept


def solarize(image: Array, threshold: float) -> Array:
    """Return `image` with all values of at least `threshold` inverted."""
    least = math.ceil(threshold)
    if least > 255:
        return image
    bright = image >= np.uint8(max(0, least))
    solarized: Array = image ^ (bright.view(np.uint8) * np.uint8(255))
    return solarized


def autocontrast(image: Array) -> Array:
    """Return `image` with each channel's values stretched to 0..255."""
    counts = _histogram(image) > 0
    least, most = counts.argmax(1), 255 - counts[:, ::-1].argmax(1)
    values = np.arange(256, dtype=np.float32)
    tables = np.stack([
        (values - low) / (np.float32(high - low) * np.float32(1.0 / 255.0)) if high > low else values
        for low, high in zip(least.astype(np.float32), most.astype(np.float32), strict=True)
    ])  # fmt: skip
    return mapped(image, tables.clip(0.0, 255.0).astype(np.uint8))


def equalize(image: Array) -> Array:
    """Return `image` with each channel's histogram equalized, with Pillow's rounding."""
    tables = np.empty((image.shape[2], 256), np.uint8)
    for channel, counts in enumerate(_histogram(image)):
        step = (counts.sum() - counts[counts.nonzero()[0][-1]]) // 255
        before = counts.cumsum() - counts
        tables[channel] = ((before + step // 2) // step).clip(0, 255) if step else np.arange(256)
    return mapped(image, tables)


def _histogram(image: Array) -> Array:
    """Return how often each byte is in each channel: (C, 256)."""
    pixels = np.ascontiguousarray(image[:, :, 0] if image.shape[2] == 1 else image)
    return np.array(Picture.fromarray(pixels).histogram()).reshape(image.shape[2], 256)


def sharpness(image: Array, factor: float) -> Array:
    """Return `image` blended with a smoothed one: 0 is smoothed, 1 changes nothing. The edge pixels stay."""
    height, width, _ = image.shape
    if height <= 2 or width <= 2:
        return image
    result = image.copy()
    rows = max(1, _BAND_VALUES // image[0].size)
    for top in range(1, height - 1, rows):
        part = image[top - 1 : min(top + rows, height - 1) + 1].astype(np.uint16)
        across = part[:, :-2] + part[:, 1:-1] + part[:, 2:]
        inner = part[1:-1, 1:-1]
        total = across[:-2] + across[1:-1] + across[2:] + 4 * inner
        smooth = ((total * 2 + 13) // 26).astype(np.float32)
        values = inner.astype(np.float32)
        smooth -= values
        smooth *= np.float32(1.0 - factor)
        values += smooth
        result[top : top + len(values), 1:-1] = values.clip(0.0, 255.0)
    return result


def gaussian_blur(image: Array, kernel_size: tuple[int, int], sigma: float) -> Array:
    """Return `image` blurred; `kernel_size` is (width, height)."""
    across, down = (_kernel(size, sigma) for size in kernel_size)
    right, below = len(across) - 1, len(down) - 1
    if not right and not below:
        return image
    height, width, channels = image.shape
    result = np.empty_like(image)
    rows = max(1, _BAND_VALUES // image[0].size)
    beside = mirrored(-right, width + 2 * right, width, "reflect")
    for top in range(0, height, rows):
        count = min(rows, height - top)
        part = image[mirrored(top - below, count + 2 * below, height, "reflect")].astype(np.float32)
        blurred: Array = _convolved(part.reshape(len(part), -1), down, 1, 0).reshape(count, width, channels)
        if right:
            edges = blurred[:, beside[:right]], blurred, blurred[:, beside[-right:]]
            blurred = np.concatenate(edges, axis=1).reshape(count, -1)
            blurred = _convolved(blurred, across, channels, 1).reshape(count, width, channels)
        blurred += np.float32(0.5)
        result[top : top + count] = blurred
    return result


def _kernel(size: int, sigma: float) -> list[np.float32]:
    """Return half a Gaussian kernel from its centre outwards, without negligible tails."""
    weights = [math.exp(-0.5 * (place / sigma) ** 2) for place in range(size // 2 + 1)]
    total = 2.0 * math.fsum(weights) - weights[0]
    used = [weight / total for weight in weights]
    while 2.0 * 255.0 * used[-1] < _NEGLIGIBLE:
        used.pop()
    return [np.float32(weight) for weight in used]


def _convolved(values: Array, half: list[np.float32], step: int, axis: int) -> Array:
    """Return `values`, (rows, columns), each mixed with those `step`, 2 `step` and so on before and after it."""
    reach = (len(half) - 1) * step
    count = values.shape[axis] - 2 * reach

    def moved(places: int) -> Array:
        return values[reach + places :][:count] if axis == 0 else values[:, reach + places :][:, :count]

    result: Array = moved(0) * half[0]
    pair = np.empty_like(result)
    for place, weight in enumerate(half[1:], 1):
        np.add(moved(-place * step), moved(place * step), out=pair)
        np.multiply(pair, weight, out=pair)
        np.add(result, pair, out=result)
    return result
