from __future__ import annotations

import io
import subprocess

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from prepserver.pack.transcode import Transcoder, transcode
from prepserver.protocol.packed import INDEXED, KEPT, read_record
from prepserver.transform.segments import interval_of
from tests.support.complete import JPEGTRAN, missing, needs_kernels
from tests.support.photos import SUBSAMPLINGS, jpeg, pixels, saved

BOTH = [pytest.param(True, marks=needs_kernels, id="kernels"), pytest.param(False, id="pillow")]


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    error = np.mean((a.astype(float) - b.astype(float)) ** 2)
    return float("inf") if error == 0 else 10 * np.log10(255**2 / error)


@needs_kernels
@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_without_loss_every_pixel_stays(subsampling: str) -> None:
    original = jpeg(97, 131, subsampling)
    done = transcode(0, original, Transcoder(True))
    head, _, image = read_record(done.record)
    assert (head.kind, done.how) == (INDEXED, "lossless")
    assert np.array_equal(simplejpeg.decode_jpeg(image), simplejpeg.decode_jpeg(original))


@needs_kernels
def test_a_progressive_jpeg_becomes_indexed_with_its_pixels() -> None:
    original = saved(pixels(97, 131), "JPEG", progressive=True)
    head, _, image = read_record(transcode(0, original, Transcoder(True)).record)
    assert head.kind == INDEXED
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(image))), np.asarray(Image.open(io.BytesIO(original))))


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_pillow_with_the_original_tables_changes_almost_nothing(subsampling: str) -> None:
    original = jpeg(97, 131, subsampling, quality=80)
    done = transcode(0, original, Transcoder(False))
    head, _, image = read_record(done.record)
    assert (head.kind, done.how) == (INDEXED, "re-encoded")
    assert psnr(simplejpeg.decode_jpeg(image), simplejpeg.decode_jpeg(original)) > 40
    assert 0.8 < len(image) / len(original) < 1.6  # 4:4:0 and 4:1:1 become 4:4:4


def test_a_stated_quality_is_what_pillow_writes() -> None:
    original = jpeg(97, 131, "420", quality=95)
    sizes = [len(transcode(0, original, Transcoder(False, quality=quality)).record) for quality in (30, 60, 90)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] / 2


@pytest.mark.parametrize("lossless", BOTH)
def test_an_image_above_the_longest_side_is_made_smaller(lossless: bool) -> None:
    head, _, image = read_record(transcode(0, jpeg(120, 200), Transcoder(lossless, max_side=100)).record)
    assert (head.height, head.width) == (60, 100)
    assert simplejpeg.decode_jpeg(image).shape == (60, 100, 3)


@pytest.mark.parametrize(
    ("width", "unit", "at_most", "interval"),
    [(500, 8, 4, 3), (500, 8, 8, 7), (500, 16, 4, 4), (500, 16, 8, 8), (375, 8, 8, 1), (9, 8, 8, 2), (1, 16, 4, 1)],
)
def test_segments_divide_the_row(width: int, unit: int, at_most: int, interval: int) -> None:
    assert interval_of(width, unit, at_most) == interval


@needs_kernels
@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
@pytest.mark.parametrize("progressive", [False, True])
def test_the_kernels_write_the_bytes_of_jpegtran(subsampling: str, progressive: bool) -> None:
    """Of whatever releases of libjpeg-turbo the two are."""
    if JPEGTRAN is None:
        missing("jpegtran is not installed (libjpeg-turbo-progs)")
    original = jpeg(97, 131, subsampling)
    if progressive:
        original = saved(Image.open(io.BytesIO(original)), "JPEG", progressive=True)
    image = bytes(read_record(transcode(0, original, Transcoder(True)).record)[2])
    interval = image[image.index(b"\xff\xdd") + 5]
    words = [JPEGTRAN, "-copy", "none", "-optimize", "-restart", f"{interval}B"]
    assert image == subprocess.run(words, input=original, stdout=subprocess.PIPE, check=True).stdout


@needs_kernels
def test_a_progressive_jpeg_without_its_last_scans_is_kept() -> None:
    """Decoders smooth it across blocks, and would not smooth a sequential one."""
    original = saved(pixels(97, 131), "JPEG", progressive=True)
    scans = [at for at in range(len(original)) if original[at : at + 2] == b"\xff\xda"]
    assert transcode(0, original[: scans[-1]] + b"\xff\xd9", Transcoder(True)).how == "kept: damaged"


@needs_kernels
def test_an_image_below_the_longest_side_loses_nothing() -> None:
    assert transcode(0, jpeg(60, 100), Transcoder(True, max_side=100)).how == "lossless"


@pytest.mark.parametrize("lossless", BOTH)
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_the_orientation_goes_into_the_record(lossless: bool, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    original = saved(pixels(40, 60), "JPEG", exif=exif)
    head, _, image = read_record(transcode(0, original, Transcoder(lossless)).record)
    assert (head.kind, head.orientation, head.height, head.width) == (INDEXED, orientation, 40, 60)
    assert b"Exif" not in bytes(image)


def of_no_size(data: bytes) -> bytes:
    """With sampling factors of 0: no decoder takes it."""
    at = data.index(b"\xff\xc0")
    return data[: at + 11] + b"\0" + data[at + 12 : at + 14] + b"\0" + data[at + 15 : at + 17] + b"\0" + data[at + 18 :]


@pytest.mark.parametrize("lossless", BOTH)
@pytest.mark.parametrize(
    ("data", "how"),
    [
        (saved(pixels(20, 30), "PNG"), "kept: PNG"),
        (saved(pixels(20, 30), "WEBP"), "kept: WebP"),
        (saved(Image.fromarray(pixels(20, 30)).convert("CMYK"), "JPEG"), "kept: CMYK"),
        (b"no image at all", "kept: no JPEG"),
        (b"\xff\xd8\xff and no more", "kept: damaged or unusual JPEG"),
        (jpeg(97, 131)[:2000], "kept: damaged"),
        (of_no_size(jpeg(97, 131)), "kept: damaged or unusual JPEG"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_transcoded_is_kept_to_the_last_byte(data: bytes, how: str, lossless: bool) -> None:
    done = transcode(4, data, Transcoder(lossless))
    head, _, image = read_record(done.record)
    assert (head.kind, head.sample, done.how) == (KEPT, 4, how)
    assert bytes(image) == data
