"""The compiled kernels as Python calls them: each checks what C relies on, and says whether it did the work."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Container, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.kinds import Size
from prepserver.pipeline.ops import Decode, RandomResizedCrop
from prepserver.protocol.packed import HEAD_BYTES, IndexedScan, StoredPixels
from prepserver.transform.header import Extent, JpegHeader, cut_at, read_header
from prepserver.transform.moves import Cut
from prepserver.transform.orientation import swaps_sides
from prepserver.transform.scale import LEAST, RESIDUAL, SCALES
from prepserver.transform.segments import is_true
from prepserver.transform.stage import Array, Box

SUBSAMPLINGS = ("Gray", "444", "422", "420", "440", "411")  # in the order of region.c's bits
_MARGIN = 40  # columns; kernels.h's number
_MARGIN_BYTES = 8192  # kernels.h's number
ALL = (1 << len(SUBSAMPLINGS)) - 1
SIZES = ((24, 40), (83, 64), (120, 130), (24, 9))  # noise is resized to these; the last is too small for AVX-512
_BYTE = np.dtype(np.uint8)
VECTORS = ("plain C", "AVX2", "AVX-512")
"""Instructions that the resize, turning and reading a scan can use, worst first, in the order of vectors.h."""
_Numbers = ctypes.c_int32 * 10  # kernels.h's
_MATRIX = struct.Struct("8d")


class CropRecipe(ctypes.Structure):
    """A random crop that is resized to a row: a task for `Kernels.crop`, with the layout of crop.c."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("least", "greatest", "log_narrow", "log_wide", "residual", "scale")),
        ("max_pixels", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("height", "width", "least_scaled", "upright")),
    )

    @classmethod
    def of(cls, op: RandomResizedCrop, decode: Decode) -> CropRecipe:
        """Return the recipe of the random crop `op` of an image that `decode` decodes."""
        log_ratio = (math.log(op.ratio[0]), math.log(op.ratio[1]))
        limits = (RESIDUAL, SCALES[-1], decode.max_pixels)
        return cls(*op.scale, *log_ratio, *limits, *op.size, LEAST, decode.exif_orientation)


class Cropped(ctypes.Array[ctypes.c_int32]):
    """The part of an image that a row of `Kernels.crop` shows; the layout is that of `plan` in crop.c."""

    _type_ = ctypes.c_int32
    _length_ = 6

    @property
    def size(self) -> Size:
        """(height, width) of the upright image."""
        return self[0], self[1]

    @property
    def cut(self) -> Cut:
        """The part of it that was resized."""
        return Cut(*self[2:])


class Kernels:
    """The compiled kernels of a shared library, which `functions.load` has loaded, and which is bound."""

    __slots__ = ("_c", "own_entropy", "resizes", "scaled_subsamplings", "subsamplings", "vectors")
    own_entropy: bool  # whether Huffman decoding is ours or libjpeg's, in the whole process
    subsamplings: int  # set of bits: subsamplings for which the decoder may be used
    scaled_subsamplings: int  # the same, for decoding at a half, a quarter and an eighth
    vectors: str  # the best of `VECTORS` that is used, in the whole process

    def __init__(self, library: ctypes.CDLL) -> None:
        self._c = library
        self.use_own_entropy(False)
        self.use_vectors(VECTORS[-1])
        self.subsamplings = self.scaled_subsamplings = ALL
        self.resizes = True  # whether the resize may be used

    def use_own_entropy(self, wish: bool) -> None:
        """Use our Huffman decoder from now on, or libjpeg's. Ours needs one of `_KNOWN_RELEASES`."""
        self._c.prep_use_own_entropy(wish)
        self.own_entropy = wish

    def use_vectors(self, best: str) -> None:
        """Use nothing better than `best` of `VECTORS` from now on, and nothing that the CPU lacks."""
        self.vectors = VECTORS[self._c.prep_use_vectors(VECTORS.index(best))]

    def use(self, right: Container[tuple[Any, ...]], own_entropy: bool) -> list[str]:
        """Use from now on only what a trial has found right, as values of `Question.of`; return what is not used."""

        def decodes(own: bool, place: int, scales: Iterable[int]) -> bool:
            return all((own, place, scale) in right for scale in scales)

        def resizes(vectors: int) -> bool:
            return all((vectors, place) in right for place in range(len(SIZES)))

        def kinds(own: bool, scales: Iterable[int]) -> int:
            return sum(decodes(own, place, scales) << place for place in range(len(SUBSAMPLINGS)))

        # A difference that libjpeg's Huffman decoder has as well is not the fault of ours.
        by_own, by_theirs = ((kinds(own, (1,)), kinds(own, SCALES)) for own in (True, False))
        self.use_own_entropy(own_entropy and by_own == by_theirs)
        self.subsamplings, self.scaled_subsamplings = by_theirs
        left_out = [] if self.own_entropy else ["our Huffman decoder"]
        for place, name in enumerate(SUBSAMPLINGS):
            words = f"4:{name[1]}:{name[2]}" if name != "Gray" else "grey"
            left_out += [] if self.subsamplings >> place & 1 else [words]
            left_out += [] if self.scaled_subsamplings >> place & 1 else [f"scaled {words}"]
        best = VECTORS.index(self.vectors)
        serve = [vectors for vectors in range(best + 1) if resizes(vectors)]
        self.resizes = len(serve) > 0
        self.use_vectors(VECTORS[serve[-1] if serve else 0])
        return left_out + ([*VECTORS[serve[-1] + 1 : best + 1]] if serve else ["resize"])

    def header(self, data: bytes) -> JpegHeader | None:
        """As `read_header`."""
        if type(data) is not bytes:
            return read_header(data)
        numbers = _Numbers()
        if self._c.prep_header(data, len(data), ctypes.addressof(numbers)) != 1:
            return None
        (height, width, components, height_at, scan_at, trimmable, unit_height, unit_width, interval,
         orientation) = numbers  # fmt: skip
        return JpegHeader(
            height, width, components, orientation, height_at, scan_at, trimmable == 1, (unit_height, unit_width),
            interval,
        )  # fmt: skip

    def region(
        self, data: bytes, header: JpegHeader, needed: Extent, part: Box, buffer: npt.NDArray[np.uint8], scale: int = 1
    ) -> npt.NDArray[np.uint8] | None:
        """Decode a rectangle of a JPEG, not empty and within the image, in pixels at 1/`scale`: 1, 2, 4 or 8.

        `needed` is the extent that `part` needs. `buffer` is contiguous, at least (rows + 1) * pitch_of(columns) * 3
        bytes. Returns the pixels, (rows, columns, 3) RGB as stored: a view of `buffer`. None if libjpeg complains or
        the file is of another kind; the buffer may then hold anything.
        """
        top, left, bottom, right = part
        pitch = pitch_of(right - left)
        if type(data) is not bytes or needed.length > len(data) or buffer.nbytes < (bottom - top + 1) * pitch * 3:
            return None
        first = self._c.prep_region(
            data, needed.length, header.height_at, needed.height, needed.left_over, header.width,
            self.subsamplings if scale == 1 else self.scaled_subsamplings, scale, top, bottom, left, right, pitch,
            address_of(buffer),
        )  # fmt: skip
        return _image(buffer, part, first)

    def is_true(self, scan: IndexedScan) -> bool:
        """As `segments.is_true`."""
        record = _record_of(scan)
        return is_true(scan) if record is None else bool(self._c.prep_is_true(*record) == 1)

    def scan(self, scan: IndexedScan, part: Box, buffer: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8] | None:
        """Decode a rectangle of an indexed JPEG, as `scans.cut` and `region` do together.

        Without `is_true` of `scan` the pixels may be any. The rectangle is not empty and lies within the image;
        `buffer` is contiguous and has at least `scan_bytes`. Returns as `region`.
        """
        top, left, bottom, right = part
        pitch = pitch_of(right - left)
        record = _record_of(scan)
        if record is None or buffer.nbytes < self.scan_bytes(scan, part):
            return None
        begins = address_of(buffer)
        nbytes = (bottom - top + 1) * pitch * 3
        first = self._c.prep_scan(
            *record, self.subsamplings, top, bottom, left, right, pitch, begins + nbytes,
            scan.head.image_bytes + _MARGIN_BYTES, begins,
        )  # fmt: skip
        return _image(buffer, part, first)

    def scan_bytes(self, scan: IndexedScan, part: Box) -> int:
        """Return the size of the buffer that `scan` needs, for the pixels and for the JPEG that it puts together."""
        rows, columns = part.bottom - part.top, part.right - part.left
        return (rows + 1) * pitch_of(columns) * 3 + scan.head.image_bytes + _MARGIN_BYTES

    def crop(
        self,
        data: bytes | IndexedScan,
        recipe: CropRecipe,
        words: bytes,
        mirror: bool,
        buffer: npt.NDArray[np.uint8],
        into: Array,
    ) -> Cropped | None:
        """Make a whole row: header, random crop, decode, resize and flip; return what it shows, None if it is not made.

        `words` are 64 random bytes, those that the crop's stage draws; `mirror` flips the result horizontally. `buffer`
        is contiguous, for pixels on the way; if it is too small, the row is not made. `into` is the row, contiguous,
        (recipe.height, recipe.width, 3) uint8; it holds anything if it was not made.
        """
        if not self.resizes or len(words) != 64 or not _is_row(into, (recipe.height, recipe.width, 3)):
            return None
        cropped = Cropped()
        how = (ctypes.addressof(recipe), words, mirror, self.subsamplings)
        where = (address_of(buffer), buffer.nbytes, address_of(into), ctypes.addressof(cropped))
        if type(data) is bytes:
            done = self._c.prep_crop(data, len(data), *how, *where)
        elif isinstance(data, IndexedScan) and (record := _record_of(data)) is not None:
            done = self._c.prep_crop_scan(*record, data.head.orientation, *how, *where)
        else:
            return None
        return cropped if done == 1 else None

    def cut(self, data: bytes, scan_at: int, count: int) -> int | None:
        """As `header.cut_at`."""
        if type(data) is not bytes or scan_at < 0 or count < 0:
            return cut_at(data, scan_at, count)
        found: int = self._c.prep_cut(data, len(data), scan_at, count)
        return found or None

    def turn(self, image: Array, orientation: int) -> npt.NDArray[np.uint8] | None:
        """As `orientation.turned`; None if the pixels are not laid out as a decoder does."""
        height, width, channels = image.shape
        pitch, pixel, byte = image.strides
        if not (channels == pixel == 3 and byte == 1 and pitch >= 3 * width and image.dtype == _BYTE):
            return None
        upright = np.empty((width, height, 3) if swaps_sides(orientation) else image.shape, np.uint8)
        done = self._c.prep_turn(image.ctypes.data, pitch, orientation, *upright.shape[:2], address_of(upright))
        return upright if done == 1 else None

    def warp(self, image: Array, matrix: tuple[float, ...], bilinear: bool, fill: bytes, into: Array) -> bool:
        """As `warp.warp`, to `into`, (h, w, C) uint8, which does not overlap `image`; return whether it was done."""
        height, width, channels = image.shape
        pitch, pixel, byte = image.strides
        if pixel != channels or (byte != 1 and channels > 1) or pitch < width * channels or image.dtype != _BYTE:
            return False
        if len(matrix) != 8 or len(fill) != channels or not _is_row(into, (*into.shape[:2], channels)):
            return False
        done = self._c.prep_warp(
            image.ctypes.data, pitch, height, width, channels, _MATRIX.pack(*matrix), bilinear, fill,
            address_of(into), *into.shape[:2],
        )  # fmt: skip
        return bool(done == 1)

    def yuv(self, stored: StoredPixels, part: Box, into: Array) -> bool:
        """Write a part of stored YUV planes to `into` as RGB; return whether it was done."""
        head, record = stored.head, stored.pixels.obj
        shape = (part.bottom - part.top, part.right - part.left, 3)
        if type(record) is not bytes or len(record) != head.record_bytes or not _is_row(into, shape):
            return False
        at = len(record) - head.image_bytes
        done = self._c.prep_yuv(record, len(record), at, head.height, head.width, *part, address_of(into))
        return bool(done == 1)

    def resize(self, image: Array, into: Array, mirror: bool) -> bool:
        """Resize `image`, (H, W, 3) uint8, to the size of `into`, (h, w, 3), antialiased bilinear.

        `image` and `into` must not overlap; the lines of `image` may be any distance apart. `mirror` flips the result
        horizontally. Returns whether it was done.
        """
        height, width, channels = image.shape
        pitch, pixel, byte = image.strides
        if not (self.resizes and channels == pixel == 3 and byte == 1 and pitch >= 3 * width):
            return False
        if image.dtype != _BYTE or not _is_row(into, (*into.shape[:2], 3)):
            return False
        done = self._c.prep_resize(image.ctypes.data, pitch, height, width, address_of(into), *into.shape[:2], mirror)
        return bool(done == 1)

    def rewrite(self, data: bytes, interval: int) -> bytes | None:
        """Move the coefficients of a JPEG into one sequential scan with `interval` MCUs between two restart markers.

        No pixel changes. Returns None if libjpeg finds fault with it.
        """
        made = ctypes.c_void_p()
        nbytes = self._c.prep_rewrite(data, len(data), interval, ctypes.addressof(made))
        try:
            return ctypes.string_at(made, nbytes) if nbytes else None
        finally:
            self._c.prep_free(made)


def pitch_of(columns: int) -> int:
    """Return the pixels that a line in the buffer of `Kernels.region` takes."""
    return columns + _MARGIN


def _image(buffer: npt.NDArray[np.uint8], part: Box, first: int) -> npt.NDArray[np.uint8] | None:
    """Return the part whose column `first` begins the buffer's lines; None if `first` is negative, an error."""
    if first < 0:
        return None
    top, left, bottom, right = part
    offset, line = 3 * (left - first), 3 * pitch_of(right - left)
    return np.ndarray((bottom - top, right - left, 3), np.uint8, buffer, offset, (line, 3, 1))


def _is_row(into: Array, shape: tuple[int, ...]) -> bool:
    """Say whether compiled code may write a row of this shape to `into`."""
    return bool(into.shape == shape and into.dtype == _BYTE and into.flags.c_contiguous)


def _record_of(scan: IndexedScan) -> tuple[Any, ...] | None:
    """Return the whole record that `scan` is a view of, as arguments of C functions; None if it is no such view."""
    head, record = scan.head, scan.jpeg.obj
    if type(record) is not bytes or record is not scan.lengths.obj or len(record) != head.record_bytes:
        return None
    if len(scan.jpeg) != head.image_bytes or len(scan.lengths) != 2 * head.segments:
        return None
    return (
        record, HEAD_BYTES, len(record) - head.image_bytes, head.image_bytes, head.segments, head.height_at,
        head.scan_at, head.height, head.width, *head.unit, head.interval,
    )  # fmt: skip


def address_of(array: Array) -> int:
    """Return the address of a contiguous, writable array, four times as fast as ``.ctypes.data``."""
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(array))  # type: ignore[arg-type]
