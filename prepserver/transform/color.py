"""Arithmetic on colours: brightness, contrast, saturation, hue, grey. torchvision v2's formulas on uint8.

Each result is cut (not rounded) to a byte, as in torchvision. Products and sums stay apart: a fused multiply-add rounds
differently, and a row has the same bytes on every CPU. Images are (H, W, C) uint8; they are not changed.

The arithmetic is in float32 and takes up to 70 bytes a pixel, so a large image is processed in bands of rows: 64
megapixels at once would take 4 GiB of a worker.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image as Picture
from torch import Tensor

from prepserver.transform.stage import Array

_BAND_PIXELS = 1 << 17
"""Pixels in a band: 9 MiB of floats. A crop of ordinary size is one band; larger bands are slower."""

_BYTES = np.arange(256, dtype=np.float32)


def brightness(image: Array, factor: float) -> Array:
    """Return image * factor, clipped to bytes."""
    return mapped(image, _linear(factor, 0.0))


def contrast(image: Array, factor: float) -> Array:
    """Return `image` blended with the mean of its grey; factor 1 changes nothing.

    The mean is exact, because a float32 mean depends on the order of its sum.
    """
    total = 0.0
    for _, band in _bands(image):
        grey = _luma(band).floor_() if band.shape[0] == 3 else band
        total += grey.sum(dtype=torch.float64).item()
    mean = total / (image.shape[0] * image.shape[1])
    return mapped(image, _linear(factor, mean * (1.0 - factor)))


def saturation(image: Array, factor: float) -> Array:
    """Return `image` blended with its grey; factor 0 is grey, 1 changes nothing. One channel stays as it is."""
    if image.shape[2] == 1:
        return image
    result = np.empty_like(image)
    for rows, band in _bands(image):
        grey = _luma(band).floor_().mul_(1.0 - factor)
        _put(result[rows], band.to(torch.float32).mul_(factor).add_(grey).clamp_(0.0, 255.0))
    return result


def hue(image: Array, factor: float) -> Array:
    """Return `image` with its hue turned by `factor` of a full turn, through HSV. One channel stays as it is."""
    if image.shape[2] == 1:
        return image
    result = np.empty_like(image)
    for rows, band in _bands(image):
        turn, chroma, value = _to_hsv(band.to(torch.float32).mul_(1.0 / 255.0))
        rgb = _from_hsv(turn.add_(factor).remainder_(1.0), chroma, value)
        _put(result[rows], rgb.mul_(256.0 - 1e-3))  # as torchvision: 1.0 is 255, steps of equal width
    return result


def grey(image: Array, channels: int) -> Array:
    """Return 0.2989 R + 0.587 G + 0.114 B, cut to bytes, in 1 or 3 equal channels."""
    result = np.empty((*image.shape[:2], channels), np.uint8)
    for rows, band in _bands(image):
        _put(result[rows], _luma(band) if band.shape[0] == 3 else band)
    return result


def mapped(image: Array, table: Array) -> Array:
    """Return `image` with each byte replaced by the table's: (256,), or (C, 256) for a table of each channel."""
    if table.ndim == 1 or len(table) == 1:
        translated = bytearray(np.ascontiguousarray(image)).translate(table.tobytes())  # a quarter of indexing's time
        return np.frombuffer(translated, np.uint8).reshape(image.shape)
    # Pillow, which takes an eighth of the time of indexing.
    return np.array(Picture.fromarray(np.ascontiguousarray(image)).point(table.ravel().tolist()))


def _linear(factor: float, offset: float) -> Array:
    """Return the table of value * factor + offset, in float32, cut to bytes."""
    return (_BYTES * np.float32(factor) + np.float32(offset)).clip(0.0, 255.0).astype(np.uint8)


def _bands(image: Array) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows of `image`, at most `_BAND_PIXELS` pixels but at least one row, each with a (C, rows, W) copy."""
    rows = max(1, _BAND_PIXELS // image.shape[1])
    for top in range(0, len(image), rows):
        band = slice(top, top + rows)
        yield band, torch.from_numpy(image[band]).permute(2, 0, 1).clone(memory_format=torch.contiguous_format)


def _put(rows: Array, values: Tensor) -> None:
    """Write (C, rows, W) values, cut to bytes, to rows of an image, which may have more channels."""
    torch.from_numpy(rows).permute(2, 0, 1).copy_(values.to(torch.uint8))


def _luma(image: Tensor) -> Tensor:
    """Return 0.2989 R + 0.587 G + 0.114 B of a (3, H, W) uint8 image as (1, H, W) float32, not rounded."""
    red, green, blue = image.to(torch.float32).unbind(0)
    grey = red.mul(0.2989).add_(green.mul(0.587)).add_(blue.mul(0.114))
    return grey.unsqueeze(0)


def _to_hsv(image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return hue in [0, 1), saturation and value of a (3, H, W) image in [0, 1].

    Choices are products with masks of 0 and 1: `torch.where` and `aminmax` are not vectorised and take five times as
    long.
    """
    red, green, blue = image.unbind(0)
    value = torch.maximum(torch.maximum(red, green), blue)
    spread = value - torch.minimum(torch.minimum(red, green), blue)
    flat = (spread == 0.0).to(torch.float32)  # 1 for grey pixels: avoids 0 / 0
    chroma = spread / (value + flat)
    rc, gc, bc = ((value - image) / (spread + flat)).unbind(0)
    is_red = (value == red).to(torch.float32)
    is_green = (value == green).to(torch.float32).mul_(1.0 - is_red)
    is_blue = (1.0 - is_red).sub_(is_green)
    turn = (bc - gc).mul_(is_red).add_((rc + 2.0 - bc).mul_(is_green)).add_((gc + 4.0 - rc).mul_(is_blue))
    return turn.mul_(1.0 / 6.0).add_(1.0).fmod_(1.0), chroma, value


def _from_hsv(turn: Tensor, chroma: Tensor, value: Tensor) -> Tensor:
    """Return the (3, H, W) image in [0, 1] of a hue in [0, 1), a saturation and a value.

    The closed form of the six sectors: value - value * chroma * clip(min(k, 4 - k), 0, 1), where k is the hue in
    sixths, counted from 5 for red, 3 for green and 1 for blue. Twice as fast as choosing by sector.
    """
    offsets = torch.tensor((5.0, 3.0, 1.0)).view(3, 1, 1)
    sixths = turn.mul(6.0).add(offsets)
    sixths.sub_((sixths >= 6.0).to(torch.float32).mul_(6.0))
    share = torch.minimum(sixths, 4.0 - sixths).clamp_(0.0, 1.0)
    return (value - share.mul_(value * chroma)).clamp_(0.0, 1.0)
