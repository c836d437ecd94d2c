"""Antialiased resizing, straight into a row, by torch's kernels or by our own with the same arithmetic for bytes.

torch's uint8 kernels work on (H, W, 3) pixels as they are (channels_last) in 16-bit fixed point, with the same result
on AVX-512, AVX2 and neither (ATEN_CPU_CAPABILITY). torchvision uses the same kernels if the CPU has AVX2.
`prepserver.transform.native` gives the same bytes in two thirds of the time or less, on every CPU, and mirrors them at
no cost. Images of other dtypes, or of more channels, are resized as float32 and rounded.
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
_FLOAT_KERNELS: dict[str, Callable[..., Any]] = {
    "bilinear": torch.ops.aten._upsample_bilinear2d_aa.default,
    "bicubic": torch.ops.aten._upsample_bicubic2d_aa.default,
}


def resize(image: Array, into: Array | None, size: tuple[int, int], interpolation: str, mirror: bool = False) -> Array:
    """Return `image`, (H, W, C) with any positive strides, resized to `size` (height, width).

    An image that already has this size is returned as it is, as in torchvision. `into` is (height, width, C) for the
    result, of the image's dtype, not overlapping `image`; None for a new array. `interpolation` is "bilinear" or
    "bicubic"; `mirror` flips the result horizontally.
    """
    height, width, channels = image.shape
    if (height, width) == size:
        return flip(image, 1) if mirror else image
    result = np.empty((*size, channels), image.dtype) if into is None else into
    if image.dtype != np.uint8 or channels not in (1, 3):
        return _resized_floats(image, result, interpolation, mirror)
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


def _resized_floats(image: Array, result: Array, interpolation: str, mirror: bool) -> Array:
    source = torch.from_numpy(image.astype(np.float32)).permute(2, 0, 1).unsqueeze(0)
    made = _FLOAT_KERNELS[interpolation](source, list(result.shape[:2]), False)
    values = made[0].permute(1, 2, 0).numpy()
    if result.dtype.kind in "iu":  # bicubic goes beyond the values that there are
        limits = np.iinfo(result.dtype)
        values = values.round().clip(limits.min, limits.max)
    np.copyto(result, values[:, ::-1] if mirror else values, casting="unsafe")
    return result


def flip(image: Array, axis: int) -> Array:
    """Return a new array, `image` reversed along `axis`.

    torch has a vector kernel for this (9 us for 224x224x3); numpy's reversed copy takes 150.
    """
    if image.dtype == np.uint16:  # which torch does not flip
        return flip(image.view(np.int16), axis).view(np.uint16)
    flipped: Array = torch.flip(torch.from_numpy(image), (axis,)).numpy()
    return flipped
