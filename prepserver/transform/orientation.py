"""EXIF orientation: finding the tag in a JPEG's APP1 segment, and turning pixels and rectangles as it says."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from prepserver.transform.stage import Box

UPRIGHT = 1
_TAG = 0x0112
_SHORT = 3
_MAX_ENTRIES = 512

_TURNS: dict[int, tuple[bool, tuple[int, ...]]] = {
    2: (False, (1,)),
    3: (False, (0, 1)),
    4: (False, (0,)),
    5: (True, ()),
    6: (True, (1,)),
    7: (True, (0, 1)),
    8: (True, (0,)),
}
"""Orientation -> (whether to swap the axes first, axes to reverse then): EXIF 2.3, tag 0x0112."""


def from_exif(block: bytes) -> int:
    """Return the orientation, 1 to 8, of a block of EXIF data; 1 if it has none or is broken.

    The block is a TIFF header and its first directory, which follow the six bytes of the word Exif in the segment.
    """
    order = {b"II": "<", b"MM": ">"}.get(block[:2])
    if order is None or len(block) < 8:
        return UPRIGHT
    (start,) = struct.unpack_from(order + "I", block, 4)
    if start + 2 > len(block):
        return UPRIGHT
    (entries,) = struct.unpack_from(order + "H", block, start)
    for entry in range(min(entries, _MAX_ENTRIES)):
        at = start + 2 + 12 * entry
        if at + 12 > len(block):
            break
        tag, kind, _count, value = struct.unpack_from(order + "HHIH", block, at)
        if tag == _TAG:
            return value if kind == _SHORT and 1 <= value <= 8 else UPRIGHT
    return UPRIGHT


def swaps_sides(orientation: int) -> bool:
    """Say whether an orientation swaps height and width."""
    return orientation >= 5


def as_stored(box: Box, orientation: int, height: int, width: int) -> Box:
    """Return where a rectangle of the upright image, of `height` x `width`, lies in the stored image."""
    swap, axes = _TURNS.get(orientation, (False, ()))
    top, left, bottom, right = box
    if 0 in axes:
        top, bottom = height - bottom, height - top
    if 1 in axes:
        left, right = width - right, width - left
    return Box(left, top, right, bottom) if swap else Box(top, left, bottom, right)


def turned(image: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """Return the image, or a part of it, turned upright: (H, W, C), contiguous unless it is upright already.

    torch moves the pixels, because numpy's reversed copies are over ten times slower.
    """
    if orientation not in _TURNS:
        return image
    swap, axes = _TURNS[orientation]
    pixels = torch.from_numpy(image.view(np.int16) if image.dtype == np.uint16 else image)  # torch flips no uint16
    if swap:
        pixels = pixels.transpose(0, 1).contiguous()
    if axes:
        pixels = torch.flip(pixels, axes)
    result: npt.NDArray[Any] = pixels.numpy().view(image.dtype)
    return result
