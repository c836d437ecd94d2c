"""Antialiased resizing in float64, to compare with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


def kernel(x: npt.NDArray[np.float64], mode: str) -> npt.NDArray[np.float64]:
    """Triangle, or Keys' cubic with a = -0.5: Pillow's and torch's antialiasing filters."""
    x = np.abs(x)
    if mode == "bilinear":
        return np.maximum(0.0, 1.0 - x)
    near = (1.5 * x - 2.5) * x * x + 1.0
    far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


def weights(length: int, wanted: int, mode: str) -> npt.NDArray[np.float64]:
    """Return the (wanted, length) matrix of antialiased resizing: the filter widened by the reduction."""
    step = length / wanted
    centres = (np.arange(wanted) + 0.5) * step
    matrix = kernel((np.arange(length) + 0.5 - centres[:, None]) / max(step, 1.0), mode)
    total: npt.NDArray[np.float64] = matrix.sum(axis=1, keepdims=True)
    return matrix / total


def float_resize(image: Pixels, size: tuple[int, int], mode: str) -> npt.NDArray[np.float64]:
    """Resize in float64. Not torch's float kernel: that one gets results one pixel wide wrong (2.13)."""
    down, across = weights(image.shape[0], size[0], mode), weights(image.shape[1], size[1], mode)
    result: npt.NDArray[np.float64] = np.einsum("hi,ijc,wj->hwc", down, image.astype(float), across, optimize=True)
    return result.clip(0, 255)
