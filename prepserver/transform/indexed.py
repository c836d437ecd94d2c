"""An indexed JPEG on its way to pixels: the needed part is cut out, and decoded like any JPEG.

Compiled code does both in one call where it can, with the same bytes (`prepserver.transform.native`).

If libjpeg complains about a part, or the index does not match the JPEG, the whole JPEG is decoded. Only records that
our packer did not write come to that: it keeps damaged JPEGs as they are, and later damage is refused when a record is
read.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from prepserver.protocol.packed import IndexedScan
from prepserver.transform.decode import Encoded, scratch
from prepserver.transform.errors import BadSample
from prepserver.transform.header import samplings
from prepserver.transform.native import kernels
from prepserver.transform.scale import scale_of
from prepserver.transform.scans import cut
from prepserver.transform.segments import is_true
from prepserver.transform.stage import Box


class EncodedScan(Encoded):
    """An indexed JPEG as an `Encoded`."""

    __slots__ = ("_is_true", "_scan")

    def __init__(self, scan: IndexedScan) -> None:
        self._scan = scan
        self._is_true: bool | None = None  # not known yet
        self.height, self.width = scan.head.height, scan.head.width
        self.is_usual = True
        self._orientation = scan.head.orientation
        self._pillow = None

    def scale(self, wanted: int) -> int:
        return 1 if wanted == 1 else scale_of(wanted, samplings(self._scan.jpeg, self._scan.head.height_at))

    def clean(self, part: Box, scale: int = 1) -> npt.NDArray[np.uint8] | None:
        compiled = kernels()
        if self._is_true is None:
            self._is_true = (is_true if compiled is None else compiled.is_true)(self._scan)
        if not self._is_true:
            return None
        if compiled is not None and scale == 1:  # a scaled part is large, so Python's share of its time is small
            image = compiled.scan(self._scan, part, scratch(compiled.scan_bytes(self._scan, part)))
            if image is not None:
                return image
        try:
            jpeg, shown = cut(self._scan, part, scale)
            encoded = Encoded(bytes(jpeg))
            if (encoded.height, encoded.width) != (shown.bottom - shown.top, shown.right - shown.left):
                return None
            return encoded.clean(part.within(shown), scale)
        except BadSample:
            return None  # `tolerant` gives the reason

    def tolerant(self) -> npt.NDArray[np.uint8]:
        self._data = bytes(self._scan.jpeg)
        return super().tolerant()
