"""From bytes to rows: purity, sharing, and every way to be bad."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from prepserver.pipeline.ops import (
    CenterCrop,
    ColorJitter,
    Decode,
    Op,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.transform import BadSample, RowMaker, SampleKey, row_makers
from prepserver.transform.decode import Encoded
from prepserver.transform.orientation import turned
from prepserver.transform.stage import Box, around
from tests.support.images import make_rows

Pixels = npt.NDArray[np.uint8]
Photo = Callable[..., Pixels]
Maker = Callable[..., bytes]

pytestmark = pytest.mark.usefixtures("each_path")
TRAIN: list[Op] = [RandomResizedCrop(24), RandomHorizontalFlip(), ColorJitter(0.4, 0.4, 0.4, 0.1)]


def maker_of(*ops: Op) -> RowMaker:
    return RowMaker(Pipeline.from_ops(ops))


def row_of(data: bytes, maker: RowMaker, key: SampleKey) -> bytes:
    out = np.full(maker.fields[0].shape, 99, maker.fields[0].dtype)
    make_rows(data, key, [(maker, out)])
    return out.tobytes()


def test_the_same_key_gives_equal_bytes_and_any_other_others(photo: Photo, jpeg: Maker) -> None:
    data = jpeg(photo(200, 150))
    keys = [SampleKey(1, 2, 3), SampleKey(0, 2, 3), SampleKey(1, 0, 3), SampleKey(1, 2, 0)]
    rows = [row_of(data, maker_of(*TRAIN), key) for key in keys]
    assert rows == [row_of(data, maker_of(*TRAIN), key) for key in keys]
    assert len(set(rows)) == len(keys)


def test_an_earlier_larger_sample_leaves_no_trace(photo: Photo, jpeg: Maker) -> None:
    small, large = jpeg(photo(50, 40, seed=1)), jpeg(photo(300, 400, seed=2))
    maker, key = maker_of(Resize((24, 24))), SampleKey(0, 0, 0)
    first = row_of(small, maker, key)
    row_of(large, maker, key)
    assert row_of(small, maker, key) == first


@pytest.mark.parametrize("damage", ["none", "within", "end"])
def test_a_row_is_the_same_alone_and_with_others(photo: Photo, saved: Maker, damage: str) -> None:
    data = bytearray(saved(photo(240, 180), "JPEG", quality=85))
    if damage == "within":
        at = len(data) * 3 // 4
        data[at : at + 60] = b"\0" * 60
    elif damage == "end":
        del data[-200:]
    makers = [maker_of(RandomResizedCrop(24, scale=(0.05, 0.2))), maker_of(*TRAIN), maker_of(Resize((20, 30)))]
    for index in range(12):
        key = SampleKey(0, 0, index)
        alone: list[bytes | None] = []
        for maker in makers:
            try:
                alone.append(row_of(bytes(data), maker, key))
            except BadSample:
                alone.append(None)
        rows = [np.full(maker.fields[0].shape, 99, maker.fields[0].dtype) for maker in makers]
        failed: list[int] = []
        try:
            make_rows(bytes(data), key, list(zip(makers, rows, strict=True)))
        except BadSample as bad:
            failed = list(bad.failures)
        assert [None if place in failed else row.tobytes() for place, row in enumerate(rows)] == alone
        assert (None in alone) == (damage == "end")


def test_a_row_is_that_of_a_whole_decode(photo: Photo, jpeg: Maker) -> None:
    data = jpeg(photo(240, 180))
    whole = Encoded(data).tolerant()
    maker = maker_of(RandomResizedCrop(32), RandomHorizontalFlip())
    for index in range(20):
        key = SampleKey(0, 0, index)
        expected = np.zeros(maker.fields[0].shape, np.uint8)
        plan = maker.plan(240, 180, key)
        maker.render(plan, plan.part.of(whole), expected)
        assert row_of(data, maker, key) == expected.tobytes()


def test_what_is_bad_for_one_target_is_made_for_the_others(photo: Photo, jpeg: Maker) -> None:
    data = jpeg(photo(60, 60))
    makers = [maker_of(RandomCrop(80)), maker_of(CenterCrop(80)), maker_of(Decode(max_pixels=3599), CenterCrop(8))]
    rows = [np.full(maker.fields[0].shape, 99, np.uint8) for maker in makers]
    with pytest.raises(BadSample) as caught:
        make_rows(data, SampleKey(0, 0, 0), list(zip(makers, rows, strict=True)))
    assert sorted(caught.value.failures) == [0, 2]
    assert "pad_if_needed" in caught.value.failures[0]
    assert "max_pixels=3599" in caught.value.failures[2]
    assert rows[1].tobytes() == row_of(data, makers[1], SampleKey(0, 0, 0))


def png_claiming(height: int, width: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def jpeg_claiming(data: bytes, height: int, width: int) -> bytes:
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def test_a_small_file_that_claims_a_huge_image_is_bad_undecoded(photo: Photo, jpeg: Maker) -> None:
    for data in (
        jpeg_claiming(jpeg(photo(8, 8)), 65000, 65000),
        png_claiming(9000, 9000),
        png_claiming(20_000, 20_000),
    ):
        with pytest.raises(BadSample, match=r"pixels"):
            row_of(data, maker_of(*TRAIN), SampleKey(0, 0, 0))
    with pytest.raises(BadSample, match=r"14000x14000 pixels are more than max_pixels="):  # Pillow's limit is lower
        row_of(png_claiming(14_000, 14_000), maker_of(*TRAIN), SampleKey(0, 0, 0))


def test_a_scan_that_ends_early_with_its_marker_is_as_pillows(photo: Photo, jpeg: Maker) -> None:
    data = jpeg_claiming(jpeg(photo(40, 40)), 400, 400)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image)
    for index in range(5):
        maker = maker_of(RandomCrop(32))
        key = SampleKey(0, 0, index)
        row = np.zeros(maker.fields[0].shape, np.uint8)
        plan = maker.plan(400, 400, key)
        maker.render(plan, plan.part.of(expected.copy()), row)
        assert row_of(data, maker, key) == row.tobytes()


@pytest.mark.parametrize("data", [b"", b"no image at all", b"\xff\xd8\xff"])
def test_no_image_fails_every_target_with_one_line(data: bytes) -> None:
    maker = maker_of(CenterCrop(8))
    row = np.zeros(maker.fields[0].shape, np.uint8)
    with pytest.raises(BadSample) as caught:
        make_rows(data, SampleKey(0, 0, 0), [(maker, row), (maker, row)])
    assert sorted(caught.value.failures) == [0, 1]
    assert "\n" not in caught.value.reason


def test_a_name_says_nothing_about_the_content(photo: Photo, saved: Maker) -> None:
    image = photo(40, 40)
    maker = maker_of(CenterCrop(40))
    assert row_of(saved(image, "PNG"), maker, SampleKey(0, 0, 0)) == image.tobytes()
    assert row_of(saved(image, "BMP"), maker, SampleKey(0, 0, 0)) == image.tobytes()


def test_rows_of_different_kinds_come_from_one_decode(photo: Photo, jpeg: Maker) -> None:
    data = jpeg(photo(100, 120))
    makers = [maker_of(*TRAIN), maker_of(Resize(64), CenterCrop(56), ToDtype("float32"))]
    rows = [np.zeros(maker.fields[0].shape, maker.fields[0].dtype) for maker in makers]
    key = SampleKey(5, 0, 9)
    make_rows(data, key, list(zip(makers, rows, strict=True)))
    assert [row.tobytes() for row in rows] == [row_of(data, maker, key) for maker in makers]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wanted=st.lists(st.tuples(st.sampled_from(range(3)), st.integers(1, 4)), min_size=1, max_size=3),
    key=st.builds(SampleKey, st.integers(0, 9), st.integers(0, 9), st.integers(0, 99)),
)
def test_each_view_is_a_row_and_the_first_is_that_of_one_view(
    photo: Photo, jpeg: Maker, wanted: list[tuple[int, int]], key: SampleKey
) -> None:
    data = jpeg(photo(200, 150))
    kinds = (TRAIN, [RandomResizedCrop(24, scale=(0.02, 0.1))], [RandomCrop(64), RandomHorizontalFlip()])
    pipelines = [Pipeline.from_ops(kinds[kind], views) for kind, views in wanted]
    makers = [maker for pipeline in pipelines for maker in row_makers(pipeline)]
    rows = [np.full(maker.fields[0].shape, 99, maker.fields[0].dtype) for maker in makers]
    make_rows(data, key, list(zip(makers, rows, strict=True)))  # one decode for all
    made = iter(rows)
    for (kind, views), pipeline in zip(wanted, pipelines, strict=True):
        got = [next(made).tobytes() for _ in range(views)]
        assert got == [row_of(data, RowMaker(pipeline, view), key) for view in range(views)]
        assert got[0] == row_of(data, maker_of(*kinds[kind]), key)


def test_all_views_of_a_sample_come_from_one_decode(photo: Photo, jpeg: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    data, key = jpeg(photo(400, 300)), SampleKey(0, 0, 4)
    makers = row_makers(Pipeline.from_ops([RandomResizedCrop(24, scale=(0.02, 0.1))], 3))
    parts = [maker.plan(400, 300, key).part for maker in makers]
    decoded: list[Box] = []
    clean = Encoded.clean

    def counted(encoded: Encoded, part: Box, scale: int) -> Pixels | None:
        decoded.append(part)
        return clean(encoded, part, scale)

    monkeypatch.setattr(Encoded, "clean", counted)
    make_rows(data, key, [(maker, np.zeros(maker.fields[0].shape, np.uint8)) for maker in makers])
    assert decoded == [around(parts)]
    assert decoded != [Box(0, 0, 400, 300)]


def test_real_photos_give_the_rows_of_a_whole_decode() -> None:
    beside = Path(__file__).parents[3].parent / "shared" / "data" / "photos"
    root = Path(os.environ.get("PREPSERVER_TEST_PHOTOS", beside))
    files = sorted(path for path in root.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg"))[::50]
    if not files:
        pytest.skip("no photos: set PREPSERVER_TEST_PHOTOS to a folder of JPEGs")
    maker = maker_of(RandomResizedCrop(64), RandomHorizontalFlip())
    for index, path in enumerate(files):
        data, key = path.read_bytes(), SampleKey(0, 0, index)
        encoded = Encoded(data)
        expected = np.zeros(maker.fields[0].shape, np.uint8)
        whole = np.ascontiguousarray(turned(encoded.tolerant(), encoded.orientation))
        height, width, _ = whole.shape
        plan = maker.plan(height, width, key)
        maker.render(plan, plan.part.of(whole), expected)
        assert row_of(data, maker, key) == expected.tobytes(), path.name
