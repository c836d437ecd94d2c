"""Decoding: sizes from headers, fewer rows than there are, every kind of image, every kind of damage."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from prepserver.transform.decode import Encoded
from prepserver.transform.errors import BadSample
from prepserver.transform.header import Extent, extent, read_header
from prepserver.transform.stage import Box

Pixels = npt.NDArray[np.uint8]
Photo = Callable[..., Pixels]
Maker = Callable[..., bytes]

relaxed = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


pytestmark = pytest.mark.usefixtures("each_path")


def top_of(encoded: Encoded, rows: int) -> Pixels | None:
    return encoded.clean(Box(0, 0, rows, encoded.width))


def needed(data: bytes, rows: int) -> Extent:
    header = read_header(data)
    assert header is not None
    return extent(data, header, rows)


def decoded(data: bytes) -> Pixels:
    encoded = Encoded(data)
    image = top_of(encoded, encoded.height)
    return (encoded.tolerant() if image is None else image).copy()


@relaxed
@given(
    subsampling=st.sampled_from(["444", "422", "420", "440", "411", "Gray"]),
    height=st.integers(1, 150),
    width=st.integers(1, 90),
    share=st.floats(0, 1),
)
def test_rows_above_the_crops_end_are_those_of_the_whole_image(
    photo: Photo, jpeg: Maker, subsampling: str, height: int, width: int, share: float
) -> None:
    data = jpeg(photo(height, width), subsampling)
    rows = max(1, round(height * share))
    whole = simplejpeg.decode_jpeg(data)
    part = top_of(Encoded(data), rows)
    assert part is not None
    assert np.array_equal(part, whole[:rows])


@relaxed
@given(
    subsampling=st.sampled_from([0, 1, 2]),
    blocks=st.integers(1, 40),
    height=st.integers(40, 150),
    width=st.integers(1, 90),
    share=st.floats(0, 1),
)
def test_rows_are_those_of_the_whole_image_with_restart_markers(
    photo: Photo, saved: Maker, subsampling: int, blocks: int, height: int, width: int, share: float
) -> None:
    data = saved(photo(height, width), "JPEG", subsampling=subsampling, restart_marker_blocks=blocks)
    rows = max(1, round(height * share))
    part = top_of(Encoded(data), rows)
    assert part is not None
    assert np.array_equal(part[:rows], simplejpeg.decode_jpeg(data)[:rows])


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411", "Gray"])
def test_rows_below_a_crop_are_not_decoded(photo: Photo, jpeg: Maker, subsampling: str) -> None:
    assert 40 <= needed(jpeg(photo(300, 80), subsampling), 40).height <= 44


def test_rows_below_a_crop_are_not_decoded_with_restart_markers(photo: Photo, saved: Maker) -> None:
    data = saved(photo(300, 80), "JPEG", restart_marker_rows=1)
    assert needed(data, 40).height < 50
    assert needed(data, 40).length < len(data) / 2


def test_a_progressive_jpeg_is_decoded_whole(photo: Photo, saved: Maker) -> None:
    data = saved(photo(300, 80), "JPEG", progressive=True)
    header = read_header(data)
    assert header is not None
    assert not header.trimmable
    assert needed(data, 10).height == 300
    part = top_of(Encoded(data), 10)
    assert part is not None
    assert np.array_equal(part, simplejpeg.decode_jpeg(data)[:10])


def test_very_many_restart_markers_mean_the_whole_image(photo: Photo, saved: Maker) -> None:
    """There are more of them than are worth counting."""
    data = saved(photo(700, 160), "JPEG", subsampling=0, restart_marker_blocks=1)
    assert needed(data, 600).height == 700
    assert needed(data, 100).height < 120


def test_the_decoded_rows_are_those_of_pillow_too(photo: Photo, jpeg: Maker) -> None:
    data = jpeg(photo(120, 97), "420")
    part = top_of(Encoded(data), 50)
    assert part is not None
    assert np.array_equal(part[:50], Encoded(data).tolerant()[:50])


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM", "GIF", "WEBP", "JPEG"])
def test_the_size_is_known_before_decoding(photo: Photo, saved: Maker, kind: str) -> None:
    encoded = Encoded(saved(photo(30, 41), kind))
    assert encoded.size(upright=False) == (30, 41)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_other_formats_are_decoded_exactly(photo: Photo, saved: Maker, kind: str) -> None:
    image = photo(30, 41)
    assert np.array_equal(decoded(saved(image, kind)), image)


def test_lossless_webp_is_decoded_exactly(photo: Photo, saved: Maker) -> None:
    image = photo(30, 41)
    assert np.array_equal(decoded(saved(image, "WEBP", lossless=True)), image)


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK"])
def test_other_modes_become_rgb_as_pillow_converts_them(photo: Photo, saved: Maker, mode: str) -> None:
    image = Image.fromarray(photo(30, 41)).convert(mode)
    data = saved(image, "TIFF" if mode == "CMYK" else "PNG")
    assert np.array_equal(decoded(data), np.asarray(image.convert("RGB")))


def test_a_palette_with_transparency_keeps_colours_silently(photo: Photo, saved: Maker) -> None:
    image = Image.fromarray(photo(30, 41)).quantize(16)
    data = saved(image, "PNG", transparency=bytes(range(16)))
    assert np.array_equal(decoded(data), np.asarray(image.convert("RGB")))


def test_sixteen_bit_grey_keeps_its_high_byte(saved: Maker) -> None:
    values = (np.arange(20 * 30, dtype=np.uint16) * 109).reshape(20, 30)
    image = decoded(saved(Image.fromarray(values), "PNG"))
    assert np.array_equal(image, np.repeat((values >> 8).astype(np.uint8)[:, :, None], 3, axis=2))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            np.array([[0, 0.5, 1]], np.float32),
            r'its pixels are floats \(mode F\), .*: read it as kinds.Array\(\(1, 3\), "float32"\)',
        ),
        (
            np.array([[-1000, 5]], np.int32),
            r'go from -1000 to 5, beyond 0 to 65535: read it as kinds.Array\(\(1, 2\), "int32"\)',
        ),
        (np.array([[0, 65536]], np.int32), "go from 0 to 65536"),
    ],
)
def test_pixels_without_a_meaning_in_8_bits_are_a_bad_sample(saved: Maker, values: Any, said: str) -> None:
    with pytest.raises(BadSample, match=said):
        decoded(saved(Image.fromarray(values), "TIFF"))


def test_a_cmyk_jpeg_goes_through_pillow(photo: Photo, saved: Maker) -> None:
    data = saved(Image.fromarray(photo(30, 41)).convert("CMYK"), "JPEG")
    with Image.open(io.BytesIO(data)) as image:
        assert np.array_equal(decoded(data), np.asarray(image.convert("RGB")))


def test_a_grey_jpeg_has_three_equal_channels(photo: Photo, jpeg: Maker) -> None:
    image = decoded(jpeg(photo(30, 41), "Gray"))
    assert image.shape == (30, 41, 3)
    assert np.array_equal(image[..., 0], image[..., 2])


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_the_first_frame_of_an_animation_counts(saved: Maker, kind: str) -> None:
    frames = [Image.new("RGB", (9, 7), color) for color in ("red", "blue")]
    options: dict[str, Any] = {"save_all": True, "append_images": frames[1:]}
    if kind == "WEBP":
        options["lossless"] = True
    image = decoded(saved(frames[0], kind, **options))
    assert np.array_equal(image, np.full((7, 9, 3), (255, 0, 0), np.uint8))


def test_fill_bytes_and_comments_in_a_header_do_no_harm(photo: Photo, jpeg: Maker) -> None:
    data = jpeg(photo(200, 41))
    odd = data[:2] + b"\xff\xfe\x00\x06abcd" + b"\xff" + data[2:]
    assert np.array_equal(decoded(odd), decoded(data))


def test_a_large_image_leaves_no_large_buffer_behind(saved: Maker) -> None:
    data = saved(Image.new("RGB", (4000, 4000)), "JPEG")
    image = top_of(Encoded(data), 4000)
    again = top_of(Encoded(data), 4000)
    assert image is not None
    assert again is not None
    assert not np.shares_memory(image, again)


def truncated(data: bytes) -> bytes:
    return data[: len(data) * 9 // 10]


@pytest.mark.parametrize("rows", [1, 20, 100, 200])
@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"progressive": True}])
def test_a_truncated_jpeg_is_bad_whatever_the_crop(
    photo: Photo, saved: Maker, rows: int, options: dict[str, Any]
) -> None:
    encoded = Encoded(truncated(saved(photo(200, 90), "JPEG", **options)))
    assert top_of(encoded, rows) is None
    with pytest.raises(BadSample, match="truncated"):
        encoded.tolerant()


@pytest.mark.parametrize("rows", [1, 60, 140, 200])
@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}])
def test_a_damaged_jpeg_gives_pillows_pixels_whatever_the_crop(
    photo: Photo, saved: Maker, rows: int, options: dict[str, Any]
) -> None:
    data = bytearray(saved(photo(200, 90), "JPEG", **options))
    middle = len(data) // 2
    data[middle : middle + 40] = b"\x00" * 40
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image)
    encoded = Encoded(bytes(data))
    part = top_of(encoded, rows)
    assert np.array_equal((encoded.tolerant() if part is None else part)[:rows], expected[:rows])


def test_garbage_before_a_marker_above_the_crops_end_is_pillows(photo: Photo, saved: Maker) -> None:
    """The marker is a restart marker."""
    data = saved(photo(200, 90), "JPEG", restart_marker_rows=1)
    at = data.index(b"\xff\xd3")
    encoded = Encoded(data[:at] + b"\x12\x34" * 20 + data[at:])
    assert top_of(encoded, 150) is None
    assert encoded.tolerant().shape == (200, 90, 3)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "TIFF", "WEBP", "BMP"])
def test_another_truncated_image_is_bad(photo: Photo, saved: Maker, kind: str) -> None:
    data = saved(photo(60, 90), kind)
    with pytest.raises(BadSample) as caught:
        decoded(data[: len(data) // 2])
    assert caught.value.reason
    assert "\n" not in caught.value.reason


@pytest.mark.parametrize("data", [b"", b"\x00", b"hello, world" * 9, b"\xff\xd8", b"\xff\xd8\xff\xe0", b"%!PS-Adobe"])
def test_what_is_no_image_is_bad_and_the_reason_holds_no_address(data: bytes) -> None:
    with pytest.raises(BadSample) as caught:
        decoded(data)
    assert "0x" not in caught.value.reason


def test_a_damaged_huffman_table_is_bad(photo: Photo, jpeg: Maker) -> None:
    data = bytearray(jpeg(photo(60, 90)))
    at = data.index(b"\xff\xc4")
    data[at + 5 : at + 21] = b"\xff" * 16
    with pytest.raises(BadSample, match="cannot be decoded"):
        decoded(bytes(data))


@relaxed
@given(st.data())
def test_a_damaged_file_is_pixels_or_a_bad_sample(photo: Photo, jpeg: Maker, saved: Maker, data: st.DataObject) -> None:
    image = photo(24, 33)
    kind = data.draw(st.sampled_from(["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP"]))
    encoded = bytearray(jpeg(image) if kind == "JPEG" else saved(image, kind))
    for _ in range(data.draw(st.integers(1, 6))):
        encoded[data.draw(st.integers(0, min(len(encoded) - 1, 700)))] = data.draw(st.integers(0, 255))
    try:
        opened = Encoded(bytes(encoded))
        if opened.height * opened.width > 10**6:
            return
        assert decoded(bytes(encoded)).shape == (opened.height, opened.width, 3)
    except BadSample as bad:
        reason = bad.reason
    else:
        reason = "fine"
    assert reason
