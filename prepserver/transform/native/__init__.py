"""Compiled kernels for the places where a row's time goes: a JPEG's header, decoding a part of it, and resizing that.

Optional. They give the very bytes of the pure path (simplejpeg and torch), or nothing, and then the pure path runs;
so whether they are there shows in nothing but time. `path` says which runs and why; ``PREPSERVER_NATIVE=0`` in the
environment turns them off.

Which libjpeg? The one that Pillow is linked to, found at run time through Pillow's own extension module. Pillow's
wheels bring a current libjpeg-turbo, a distribution's Pillow brings the system's; either way it is in the process
already, it is the one whose verdict on damaged files holds, and there is nothing to ship. It is built for the ABI
of libjpeg 6b (62), in which the structs of all releases of libjpeg-turbo are alike; conda and Ubuntu build ABI 80,
and there the pure path runs. Linking the system's library instead would tie a wheel to a distribution, and putting
a copy into the wheel would leave its security updates to us. One part of it is replaced, Huffman decoding, where the
release is one whose insides are known (entropy.c).

That two builds of libjpeg-turbo give the same pixels is no law, nor is torch's arithmetic. So the kernels are
compared with simplejpeg and torch on a few images when they are loaded, for each subsampling: what differs is not
used. Knows bytes and arrays, no pipeline.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
from PIL import _imaging

from prepserver.protocol.packed import HEAD_BYTES, IndexedScan
from prepserver.transform.header import Extent, JpegHeader, extent, read_header
from prepserver.transform.orientation import UPRIGHT
from prepserver.transform.scale import LEAST, RESIDUAL, SCALES, scaled
from prepserver.transform.stage import Array, Box

_FOLDER = Path(__file__).parent
_LIBRARY = _FOLDER / "_native.so"
_ABI = "6.2"
_KNOWN_RELEASES = ("2", "3")
"""Of libjpeg-turbo, by their first number: where our Huffman decoder can take the place of theirs. Pillow names the
release that it was compiled for; the one that a distribution runs it with is of the same ABI, and so not another."""

_SUBSAMPLINGS = ("Gray", "444", "422", "420", "440", "411")  # in the order of region.c's bits
_MARGIN = 40  # columns; kernels.h's number
_MARGIN_BYTES = 8192  # kernels.h's number
_BYTE = np.dtype(np.uint8)
_Numbers = ctypes.c_int32 * 10  # kernels.h's


class Choice(NamedTuple):
    """Which path makes rows.

    Attributes:
        name: "native" or "pure".
        reason: One line for a person: what the native path covers, or why it is not taken.
    """

    name: Literal["native", "pure"]
    reason: str


class CropRecipe(ctypes.Structure):
    """A random crop, resized to a row: what `Kernels.crop` is to do, as crop.c has it."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("least", "greatest", "log_narrow", "log_wide", "residual", "scale")),
        ("max_pixels", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("height", "width", "least_scaled", "upright")),
    )

    @classmethod
    def of(
        cls,
        size: tuple[int, int],
        scale: tuple[float, float],
        log_ratio: tuple[float, float],
        max_pixels: int,
        upright: bool,
    ) -> CropRecipe:
        """Put one together.

        Args:
            size: (height, width) of the row.
            scale: Least and greatest share of the image's area.
            log_ratio: Logarithms of the least and the greatest width / height.
            max_pixels: Largest image that may be decoded.
            upright: Whether the image is to be turned by its EXIF orientation.
        """
        return cls(*scale, *log_ratio, RESIDUAL, SCALES[-1], max_pixels, *size, LEAST, upright)


class Kernels:
    """The compiled kernels.

    Args:
        library: The loaded and bound shared library.

    Attributes:
        own_entropy: Whether Huffman decoding is ours and not libjpeg's; the same for all of a process.
        subsamplings: Set of bits: for which the decoder may be used; all until `check` says otherwise.
        scaled_subsamplings: The same, for decoding at a half, a quarter and an eighth.
        resizes: Whether the resize may be used.
        wide: Whether it uses AVX-512; the same for all of a process.
    """

    __slots__ = (
        "_crop", "_crop_scan", "_header", "_last", "_region", "_resize", "_scan", "_use_own_entropy",
        "_use_wide", "own_entropy", "resizes", "scaled_subsamplings", "subsamplings", "wide",
    )  # fmt: skip

    def __init__(self, library: ctypes.CDLL) -> None:
        count, size, number, data, address = (
            ctypes.c_uint, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p,
        )  # fmt: skip
        record = (data, size, size, size, *[count] * 8)
        drawn, room = (address, data, number, count), (address, size)
        self._header = _bound(library.prep_header, data, size, address)
        self._region = _bound(
            library.prep_region, data, size, size, count, number, count, count, count, *[count] * 5, address
        )
        self._scan = _bound(library.prep_scan, *record, *[count] * 6, *room, address)
        self._resize = _bound(library.prep_resize, address, size, number, number, address, number, number, number)
        self._crop = _bound(library.prep_crop, data, size, *drawn, *room, address)
        self._crop_scan = _bound(library.prep_crop_scan, *record, *drawn, *room, address)
        self._use_own_entropy = _bound(library.prep_use_own_entropy, number)
        self._use_wide = _bound(library.prep_use_wide, number)
        self.use_own_entropy(False)
        self.use_wide(True)
        self.subsamplings = self.scaled_subsamplings = (1 << len(_SUBSAMPLINGS)) - 1
        self.resizes = True
        # The image made last and its address, which numpy takes microseconds to tell: it is mostly what is resized.
        self._last: tuple[weakref.ref[Array], int] | None = None

    def use_own_entropy(self, wish: bool) -> None:
        """Decode Huffman codes ourselves from now on, or not. Only for a release that is known to have room for it."""
        self._use_own_entropy(wish)
        self.own_entropy = wish

    def use_wide(self, wish: bool) -> None:
        """Use AVX-512 from now on, where this CPU has it, or not."""
        self.wide = self._use_wide(wish) == 1

    def header(self, data: bytes) -> JpegHeader | None:
        """As `read_header`."""
        if type(data) is not bytes:
            return read_header(data)
        numbers = _Numbers()
        if self._header(data, len(data), ctypes.addressof(numbers)) != 1:
            return None
        (height, width, components, height_at, scan_at, trimmable, unit_height, unit_width, interval,
         orientation) = numbers  # fmt: skip
        return JpegHeader(
            height, width, components, orientation, height_at, scan_at, trimmable == 1, (unit_height, unit_width),
            interval,
        )  # fmt: skip

    def pitch(self, columns: int) -> int:
        """Return how many pixels a line in `region`'s buffer takes."""
        return columns + _MARGIN

    def region(
        self,
        data: bytes,
        header: JpegHeader,
        needed: Extent,
        part: Box,
        buffer: npt.NDArray[np.uint8],
        scale: int = 1,
    ) -> npt.NDArray[np.uint8] | None:
        """Decode a rectangle of a JPEG.

        Args:
            data: The file.
            header: Its header.
            needed: What to look at of it, for `part`.
            part: The rectangle, not empty and within the image, as it is at 1/scale.
            buffer: Contiguous, (rows + 1) * pitch(columns) * 3 bytes at least.
            scale: 1, 2, 4 or 8.

        Returns:
            The pixels, (rows, columns, 3) RGB as stored: a view of `buffer`. None where libjpeg has something to
            say or the file is not of a kind that this is for; the buffer may then hold anything.
        """
        top, left, bottom, right = part
        rows, columns = bottom - top, right - left
        pitch = self.pitch(columns)
        nbytes = (rows + 1) * pitch * 3
        if type(data) is not bytes or buffer.nbytes < nbytes:
            return None
        begins = address_of(buffer)
        first = self._region(
            data, needed.length, header.height_at, needed.height, needed.left_over, header.width,
            self.subsamplings if scale == 1 else self.scaled_subsamplings, scale, top, bottom, left, right, pitch,
            begins,
        )  # fmt: skip
        if first < 0:
            return None
        return self._image(buffer, begins, (rows, columns, 3), 3 * (left - first), 3 * pitch)

    def scan(self, scan: IndexedScan, part: Box, buffer: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8] | None:
        """Decode a rectangle of an indexed JPEG: as `cut` and `region` do together.

        Args:
            scan: The indexed JPEG.
            part: The rectangle, not empty and within the image.
            buffer: Contiguous, `scan_bytes` at least.

        Returns:
            As `region`.
        """
        top, left, bottom, right = part
        head = scan.head
        rows, columns = bottom - top, right - left
        pitch = self.pitch(columns)
        if buffer.nbytes < self.scan_bytes(scan, part):
            return None
        begins = address_of(buffer)
        nbytes = (rows + 1) * pitch * 3
        record = _record_of(scan)
        if record is None:
            return None
        first = self._scan(
            record, HEAD_BYTES, len(record) - head.image_bytes, head.image_bytes, head.segments, head.height_at,
            head.scan_at, head.height, head.width, *head.unit, head.interval, self.subsamplings, top, bottom, left,
            right, pitch, begins + nbytes, head.image_bytes + _MARGIN_BYTES, begins,
        )  # fmt: skip
        if first < 0:
            return None
        return self._image(buffer, begins, (rows, columns, 3), 3 * (left - first), 3 * pitch)

    def scan_bytes(self, scan: IndexedScan, part: Box) -> int:
        """Return how large a buffer `scan` needs: for the pixels, and for the JPEG that is put together."""
        rows, columns = part.bottom - part.top, part.right - part.left
        return (rows + 1) * self.pitch(columns) * 3 + scan.head.image_bytes + _MARGIN_BYTES

    def crop(
        self,
        data: bytes | IndexedScan,
        recipe: CropRecipe,
        words: bytes,
        mirror: bool,
        buffer: npt.NDArray[np.uint8],
        into: Array,
    ) -> bool:
        """Make a whole row: header, random crop, decode, resize and flip; say if it was done.

        Args:
            data: The JPEG, plain or indexed.
            recipe: What to do.
            words: 64 random bytes, those of `ResizedCropStage`.
            mirror: Flip the result horizontally.
            buffer: Contiguous, for pixels on the way; where it is too small, the row is not made.
            into: The row, contiguous, (recipe.height, recipe.width, 3) uint8. May hold anything if it was not done.
        """
        if not self.resizes or len(words) != 64 or not into.flags.c_contiguous:
            return False
        how = (ctypes.addressof(recipe), words, mirror, self.subsamplings)
        where = (address_of(buffer), buffer.nbytes, address_of(into))
        if type(data) is bytes:
            done = self._crop(data, len(data), *how, *where)
            return done == 1
        if not isinstance(data, IndexedScan) or (record := _record_of(data)) is None:
            return False
        head = data.head
        if recipe.upright and head.orientation != UPRIGHT:
            return False
        done = self._crop_scan(
            record, HEAD_BYTES, len(record) - head.image_bytes, head.image_bytes, head.segments, head.height_at,
            head.scan_at, head.height, head.width, *head.unit, head.interval, *how, *where,
        )  # fmt: skip
        return done == 1

    def _image(
        self, buffer: npt.NDArray[np.uint8], begins: int, shape: tuple[int, int, int], offset: int, line: int
    ) -> npt.NDArray[np.uint8]:
        image: npt.NDArray[np.uint8] = np.ndarray(shape, np.uint8, buffer, offset, (line, 3, 1))
        self._last = weakref.ref(image), begins + offset
        return image

    def resize(self, image: Array, into: Array, mirror: bool) -> bool:
        """Resize `image`, (H, W, 3) uint8, to the size of `into`, (h, w, 3), antialiased bilinear; say if it was done.

        Args:
            image: The pixels; lines may have any distance.
            into: The result; not overlapping `image`.
            mirror: Flip the result horizontally.
        """
        height, width, channels = image.shape
        pitch, pixel, byte = image.strides
        if not (self.resizes and channels == pixel == 3 and byte == 1 and pitch >= 3 * width):
            return False
        if not into.flags.c_contiguous or image.dtype != _BYTE or into.dtype != _BYTE:
            return False
        last = self._last
        begins = last[1] if last is not None and last[0]() is image else image.ctypes.data
        done = self._resize(begins, pitch, height, width, address_of(into), into.shape[0], into.shape[1], mirror)
        return done == 1


def _bound(function: Any, *types: Any) -> Callable[..., int]:
    """Return the C function, which takes these types; all give back an int or nothing."""
    function.argtypes = types
    return function  # type: ignore[no-any-return]


def _record_of(scan: IndexedScan) -> bytes | None:
    """Return the whole record that `scan` is a view of; None where it is something else."""
    head, record = scan.head, scan.jpeg.obj
    if type(record) is not bytes or record is not scan.lengths.obj or len(record) != head.record_bytes:
        return None
    return record if len(scan.jpeg) == head.image_bytes and len(scan.lengths) == 2 * head.segments else None


def address_of(array: Array) -> int:
    """Return where the data of a contiguous, writable array begin: what ``.ctypes.data`` says, four times as fast."""
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(array))  # type: ignore[arg-type]


@cache
def kernels() -> Kernels | None:
    """Return the compiled kernels, None where there are none. Loads them at the first call, in some milliseconds."""
    return _loaded()[0]


@cache
def path() -> Choice:
    """Say which path makes rows in this process."""
    return _loaded()[1]


@cache
def _loaded() -> tuple[Kernels | None, Choice]:
    if os.environ.get("PREPSERVER_NATIVE") == "0":
        return None, Choice("pure", "turned off by PREPSERVER_NATIVE=0")
    if not _LIBRARY.exists():
        return None, Choice(
            "pure", "not built: `python hatch_build.py` builds it, with a C compiler and libjpeg's headers"
        )
    abi, version = str(_imaging.jpeglib_version), getattr(_imaging, "libjpeg_turbo_version", None)
    if version is None or abi != _ABI:
        return None, Choice("pure", f"Pillow's libjpeg is {version or 'not libjpeg-turbo'} with ABI {abi}, not {_ABI}")
    try:
        library = ctypes.CDLL(str(_LIBRARY))
        built_from = ctypes.string_at(library.prep_source).decode()
    except (OSError, AttributeError) as error:
        return None, Choice("pure", f"cannot be loaded: {error}")
    if built_from != digest(_FOLDER):
        return None, Choice("pure", "built from other sources than these: `python hatch_build.py` builds it again")
    bind = library.prep_bind
    bind.argtypes, bind.restype = [ctypes.c_char_p], ctypes.c_char_p
    missing = bind(os.fsencode(str(_imaging.__file__)))
    if missing is not None:
        return None, Choice("pure", f"Pillow's libjpeg {version} cannot be used: {missing.decode()}")
    found, left_out = _checked(library, str(version).split(".")[0] in _KNOWN_RELEASES)
    if not found.subsamplings:
        return None, Choice("pure", f"Pillow's libjpeg {version} gives other pixels than simplejpeg")
    without = f", without {', '.join(left_out)}" if left_out else ""
    return found, Choice("native", f"libjpeg-turbo {version} of Pillow{without}")


def _checked(library: ctypes.CDLL, is_known: bool) -> tuple[Kernels, list[str]]:
    """Return the kernels, and what of them is switched off."""
    found = Kernels(library)
    found.use_own_entropy(is_known)
    left_out = check(found)
    if left_out and is_known:
        theirs = Kernels(library)
        with_theirs = check(theirs)
        if with_theirs == left_out:  # it is not for our Huffman decoder that they differ
            found.use_own_entropy(True)
        else:
            found, left_out = theirs, with_theirs
    return found, left_out if found.own_entropy else ["our Huffman decoder", *left_out]


def forget() -> None:
    """Look again at the next call, at the environment too."""
    _loaded.cache_clear()
    kernels.cache_clear()
    path.cache_clear()


def digest(folder: Path) -> str:
    """Return what the C sources in `folder` hash to: a build says which it was made from."""
    total = hashlib.sha256()
    for source in sorted(folder.glob("*.[ch]")):
        total.update(source.read_bytes())
    return total.hexdigest()[:16]


def check(found: Kernels) -> list[str]:
    """Compare the kernels with simplejpeg and torch on small images of noise, and switch off what differs.

    Returns:
        What was switched off.
    """
    left_out: list[str] = []
    noise = np.random.default_rng(0).integers(0, 256, (83, 109, 3), np.uint8)
    part = Box(19, 37, 50, 78)  # no edge of it on an MCU's
    for bit, name in enumerate(_SUBSAMPLINGS):
        grey = name == "Gray"
        pixels = np.ascontiguousarray(noise[:, :, :1]) if grey else noise
        data = simplejpeg.encode_jpeg(pixels, 80, "GRAY" if grey else "RGB", name)
        words = f"4:{name[1]}:{name[2]}" if not grey else "grey"
        if not _agrees(found, data, part, 1):
            found.subsamplings &= ~(1 << bit)
            left_out.append(words)
        if not all(_agrees(found, data, Box(16, 40, 48, 72), scale) for scale in SCALES):
            found.scaled_subsamplings &= ~(1 << bit)
            left_out.append(f"scaled {words}")
    if not _resizes(found, noise):
        was_wide = found.wide
        found.use_wide(False)
        found.resizes = was_wide and _resizes(found, noise)
        left_out.append("AVX-512" if found.resizes else "resize")
    return left_out


def _resizes(found: Kernels, image: npt.NDArray[np.uint8]) -> bool:
    """Say whether `image` is resized as torch resizes it."""
    for size in ((24, 40), (83, 64), (120, 130), (24, 9)):  # the last is too much smaller for AVX-512
        into = np.empty((*size, 3), np.uint8)
        expected = torch.ops.aten._upsample_bilinear2d_aa(
            torch.from_numpy(image).permute(2, 0, 1).unsqueeze(0), list(size), False, None, None
        )[0].permute(1, 2, 0)
        if not found.resize(image, into, mirror=True) or not np.array_equal(into[:, ::-1], expected.numpy()):
            return False
    return True


def _agrees(found: Kernels, data: bytes, part: Box, scale: int) -> bool:
    """Say whether `part` of this JPEG at 1/scale is decoded as simplejpeg decodes it."""
    header = read_header(data)
    assert header is not None
    least = {"min_height": scaled(header.height, scale), "min_width": scaled(header.width, scale)}
    expected = simplejpeg.decode_jpeg(data, **(least if scale > 1 else {}))
    needed, part = extent(data, header, part.bottom, scale), part.over(scale)
    buffer = np.empty((part.bottom - part.top + 1) * found.pitch(part.right - part.left) * 3, np.uint8)
    got = found.region(data, header, needed, part, buffer, scale)
    return got is not None and np.array_equal(got, part.of(expected))
