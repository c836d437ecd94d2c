"""Converts one encoded image into one record: losslessly by libjpeg, encoded again by Pillow, as pixels, or unchanged.

libjpeg, through a compiled kernel, moves the coefficients of a JPEG, also of a progressive one, into a new scan with
restart markers, so the pixels stay the same. Pillow decodes and encodes again. Files that neither can convert without a
complaint are kept unchanged: a dataset may hold anything, and is served packed as it would be served unpacked.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Any

from PIL import Image, JpegImagePlugin

from prepserver.pipeline import kinds
from prepserver.pipeline.ops import Resize
from prepserver.pipeline.pipeline import Pipeline
from prepserver.protocol.packed import kept_record, pixels_record
from prepserver.transform import native
from prepserver.transform.errors import BadSample
from prepserver.transform.header import JpegHeader, read_header
from prepserver.transform.heads import after_head
from prepserver.transform.rowmaker import RowMaker
from prepserver.transform.rows import opened
from prepserver.transform.segments import PROGRESSIVE, SEQUENTIAL, frame_of, interval_of, record_of, unit_of
from prepserver.transform.stored import stored_bytes

KEEP_QUALITY = 0
"""Instead of a quality from 1 to 100: keeps the quantisation tables and the subsampling of each original."""

# Coefficients of all components are in memory at once: about 6 bytes a pixel.
_MAX_PIXELS = 1 << 27
_PILLOW_SUBSAMPLINGS = {0: (8, 8), 1: (8, 16), 2: (16, 16)}
_ENDINGS = {b"\x89PNG": "PNG", b"RIFF": "WebP", b"GIF8": "GIF", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF"}


@dataclass(frozen=True, slots=True)
class Transcoder:
    """How images are transcoded."""

    lossless: bool  # move coefficients, by the compiled kernels; False to encode everything again by Pillow
    segment_mcus: int = 4  # most MCUs in a segment, 1 to 8
    quality: int = KEEP_QUALITY  # quality at which Pillow encodes, 1 to 100 or `KEEP_QUALITY`
    max_side: int | None = None  # Longest side in pixels; Pillow makes larger JPEGs smaller. None for no limit.
    pixels: str | None = None  # decode images, and store them in this form, one of `PIXEL_UNITS`; None to store JPEGs
    side: int | None = None  # The shorter side of stored pixels, of images that have more. None keeps each one's size.

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the records, as values for JSON."""
        if self.pixels is not None:
            return {"form": "pixels", "pixels": self.pixels, "side": self.side}
        return {
            "transcoder": "jpegtran" if self.lossless else "pillow",  # a program that older releases ran: same bytes
            "segment_mcus": self.segment_mcus,
            "quality": self.quality,
            "max_side": self.max_side,
        }


@dataclass(frozen=True, slots=True)
class Transcoded:
    """A record, and how it was made: ``lossless``, ``re-encoded``, ``pixels``, or ``kept: `` and why."""

    record: bytes
    how: str


DAMAGED = "kept: damaged"
NO_IMAGE = "kept: no JPEG"
ODD = "kept: damaged or unusual JPEG"  # `Transcoded.how` of files that the owner may want to check


class _Unable(Exception):
    """This image cannot be transcoded; the text is its `Transcoded.how`."""


def transcode(sample: int, data: bytes, transcoder: Transcoder) -> Transcoded:
    """Return the record of an encoded image, `data`, which has the number `sample` in the source."""
    try:
        if transcoder.pixels is not None:
            return Transcoded(_decoded(sample, data, transcoder.pixels, transcoder.side), "pixels")
        header = _transcodable(data)
        smaller = transcoder.max_side is not None and max(header.height, header.width) > transcoder.max_side
        if transcoder.lossless and not smaller:
            interval = interval_of(header.width, unit_of(header)[1], transcoder.segment_mcus)
            jpeg, how = _rearranged(data, interval), "lossless"
        else:
            jpeg, how = _encoded_again(data, transcoder), "re-encoded"
        record = record_of(sample, jpeg, header.orientation)
        if record is None:
            raise _Unable("kept: unusual sampling")
    except _Unable as reason:
        return Transcoded(kept_record(sample, data), str(reason))
    return Transcoded(record, how)


def _decoded(sample: int, data: bytes, form: str, side: int | None) -> bytes:
    """Return the record of an image's pixels, upright, as `Resize(side)` leaves one that is larger."""
    try:
        height, width = opened(data, kinds.Image()).size(upright=True)
        if side is not None and min(height, width) > side:
            height, width = Resize(side).result(height, width)
        maker = RowMaker(Pipeline.from_ops([Resize((height, width))]))
        made = after_head(maker, 1, {"image": data}, lambda _: True)
    except BadSample as error:
        raise _Unable(DAMAGED) from error
    assert made is not None  # None is for heads without an op, and for samples with several images
    return pixels_record(sample, (height, width), form, stored_bytes(made["image"], form))


def _transcodable(data: bytes) -> JpegHeader:
    header = read_header(data)
    if header is None:
        names = (f"kept: {name}" for begin, name in _ENDINGS.items() if data.startswith(begin))
        raise _Unable(ODD if data[:2] == b"\xff\xd8" else next(names, NO_IMAGE))
    if header.components == 4:
        raise _Unable("kept: CMYK")
    if frame_of(data, header) not in (*SEQUENTIAL, PROGRESSIVE) or header.components not in (1, 3):
        raise _Unable("kept: unusual JPEG")
    if header.height * header.width > _MAX_PIXELS:
        raise _Unable("kept: too large")
    return header


def _rearranged(data: bytes, interval: int) -> bytes:
    """Return a JPEG with the same coefficients in one scan with a restart marker every `interval` MCUs."""
    kernels = native.kernels()
    made = None if kernels is None else kernels.rewrite(data, interval)
    if made is None:
        raise _Unable(DAMAGED)
    return made


def _encoded_again(data: bytes, transcoder: Transcoder) -> bytes:
    """Return the image decoded, made smaller if it is too large, and encoded by Pillow."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=("JPEG",)) as opened:
                if not isinstance(opened, JpegImagePlugin.JpegImageFile) or opened.mode not in ("L", "RGB"):
                    raise _Unable("kept: unusual JPEG")
                tables = opened.quantization
                sampling = JpegImagePlugin.get_sampling(opened) if opened.mode == "RGB" else 0
                if transcoder.max_side is not None:
                    # Does nothing to an image that is small enough.
                    opened.thumbnail((transcoder.max_side, transcoder.max_side), Image.Resampling.LANCZOS)
                opened.load()
                return _encoded(opened, tables, sampling, transcoder)
    except (OSError, SyntaxError, ValueError, EOFError, ArithmeticError, LookupError, TypeError) as error:
        raise _Unable(DAMAGED) from error


def _encoded(image: Image.Image, tables: dict[int, list[int]], sampling: int, transcoder: Transcoder) -> bytes:
    if sampling not in _PILLOW_SUBSAMPLINGS:  # 4:4:0 and 4:1:1, which Pillow cannot write
        sampling = 0
    unit_width = 8 if image.mode == "L" else _PILLOW_SUBSAMPLINGS[sampling][1]
    file = io.BytesIO()
    image.save(
        file,
        "JPEG",
        subsampling=sampling,
        optimize=True,
        restart_marker_blocks=interval_of(image.width, unit_width, transcoder.segment_mcus),
        **({"qtables": tables} if transcoder.quality == KEEP_QUALITY else {"quality": transcoder.quality}),
    )
    return file.getvalue()
