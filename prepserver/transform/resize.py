"""Antialiased resizing of bytes, straight into a row, by torch's kernels or by our own with the same arithmetic.

torch's uint8 kernels work on (H, W, 3) pixels as they are (channels_last) in 16-bit fixed point, with the same result
on AVX-512, AVX2 and neither (ATEN_CPU_CAPABILITY). torchvision uses the same kernels if the CPU has AVX2.
`prepserver.transform.native` gives the same bytes in two thirds of the time or less, on every CPU, and mirrors them at
no cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from prepserver.transform.native import kernels
from prepserver.transform.stage import Array, delivered

_KERNELS: dict[str, Callable[..., Any]] = {
    # The out= forms: torch.nn.functional.interpolate would allocate its result and cost half as much again.
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa.out,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa.out,
}


def resize(image: Array, into: Array | None, size: tuple[int, int], interpolation: str, mirror: bool = False) -> Array:
    """Return `image`, (H, W, C) uint8 with any positive strides, resized to `size` (height, width).

    An image that already has this size is returned as it is, as in torchvision. `into` is (height, width, C) uint8 for
    the result, not overlapping `image`; None for a new array. `interpolation` is "bilinear" or "bicubic"; `mirror`
    flips the result horizontally.
    """
    height, width, channels = image.shape
    if (height, width) == size:
        return flip(image, 1) if mirror else image
    result = np.empty((*size, channels), np.uint8) if into is None else into
    if channels > 1 and image.strides[2] != 1:
        # torch's kernel takes a planar image and an interleaved result for the same layout. It fails an internal
        # assertion, or writes past the end of the result if only the width changes.
        image = np.ascontiguousarray(image)
    compiled = kernels()
    if compiled is not None and interpolation == "bilinear" and compiled.resize(image, result, mirror):
        return result
    # The kernel takes a fast path by strides; a batch of one with its channels last has them.
    source = torch.from_numpy(image).permute(2, 0, 1).unsqueeze(0)
    target = torch.from_numpy(result).permute(2, 0, 1).unsqueeze(0)
    _KERNELS[interpolation](source, list(size), False, None, None, out=target)
    return delivered(flip(result, 1), result) if mirror else result


def flip(image: Array, axis: int) -> Array:
    """Return a new array, `image` reversed along `axis`.

    torch has a vector kernel for this (9 us for 224x224x3); numpy's reversed copy takes 150.
    """
    flipped: Array = torch.flip(torch.from_numpy(image), (axis,)).numpy()
    return flipped
