"""Large JPEGs decoded at a half, a quarter or an eighth: good enough, and the same bytes whatever the way."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from prepserver.pipeline.ops import (
    CenterCrop,
    Decode,
    Mosaic,
    Op,
    PadBoxes,
    PadKeypoints,
    PadTokens,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomShortestSize,
    Resize,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.protocol.packed import IndexedScan
from prepserver.transform import BadSample, RowMaker, SampleKey
from prepserver.transform.decode import Encoded
from prepserver.transform.ops.random_resized_crop import RandomResizedCropStage
from prepserver.transform.orientation import turned
from prepserver.transform.scale import LEAST, RESIDUAL, SCALES, divisor, scale_for, scale_of
from prepserver.transform.stage import Box, Draws
from tests.support.images import make_rows
from tests.support.photos import PILLOW_SUBSAMPLINGS, indexed, jpeg, pixels, saved
from tests.support.resizing import float_resize
from tests.support.scenes import COLUMNS, Scenes, encoded, rows_of, same, scene

pytestmark = pytest.mark.once

Pixels = npt.NDArray[np.uint8]
PathOf = Callable[[str], Any]

CROP, SMALL_CROP = RandomResizedCrop(16, scale=(0.05, 1.0)), RandomResizedCrop(9, scale=(0.02, 0.3))
LETTERBOX = (Resize(None, max_size=24), CenterCrop(24))
KINDS: dict[str, dict[str, Any]] = {
    "444": {"subsampling": 0}, "422": {"subsampling": 1}, "420": {"subsampling": 2},
    "progressive": {"subsampling": 2, "progressive": True}, "restarts": {"subsampling": 2, "restart_marker_rows": 1},
    "grey": {},
}  # fmt: skip


def maker_of(*ops: Op, views: int = 1, view: int = 0) -> RowMaker:
    return RowMaker(Pipeline.from_ops(ops, views), view)


def key_of(index: int) -> SampleKey:
    return SampleKey(3, 0, index)


def row_of(data: bytes | IndexedScan, maker: RowMaker, key: SampleKey) -> Pixels:
    out = np.full(maker.fields[0].shape, 99, maker.fields[0].dtype)
    make_rows(data, key, [(maker, out)])
    return out


def detailed(height: int, width: int, seed: int) -> Pixels:
    """Waves and grain, as a photo has them, behind many hard edges, of colours as strong as a photo's."""
    image, rng = pixels(height, width, seed), np.random.default_rng(seed)
    for _ in range(height * width // 2000):
        rows, columns = rng.integers(2, 40, 2)
        top, left = rng.integers(0, height - rows), rng.integers(0, width - columns)
        colour = rng.integers(0, 256) + rng.integers(-60, 61, 3)
        image[top : top + rows, left : left + columns] = colour.clip(0, 255)
    return image


@lru_cache(maxsize=64)
def file_of(kind: str, height: int, width: int, seed: int = 0, orientation: int = 1) -> bytes:
    if kind in ("440", "411"):
        return bytes(simplejpeg.encode_jpeg(detailed(height, width, seed), 90, "RGB", kind))
    image = Image.fromarray(detailed(height, width, seed))
    tags = Image.Exif()
    tags[0x0112] = orientation
    return saved(image.convert("L") if kind == "grey" else image, "JPEG", quality=90, exif=tags, **KINDS[kind])


def decoded_at(data: bytes, scale: int) -> Pixels:
    """The whole image at 1/scale, by simplejpeg."""
    with Image.open(io.BytesIO(data)) as image:
        width, height = image.size
    least = {"min_height": -(-height // scale), "min_width": -(-width // scale)} if scale > 1 else {}
    whole: Pixels = simplejpeg.decode_jpeg(data, **least)
    return whole


def decibels(row: Pixels, exact: npt.NDArray[np.float64]) -> float:
    return float(10 * np.log10(255**2 / np.mean((row - exact) ** 2)))


@given(
    st.tuples(st.integers(1, 9000), st.integers(1, 9000)), st.tuples(st.integers(1, 500), st.integers(1, 500))
)  # fmt: skip
def test_the_scale_is_the_greatest_that_the_resize_allows(part: tuple[int, int], size: tuple[int, int]) -> None:
    def fits(scale: int) -> bool:
        return all(has >= wants * scale * RESIDUAL for has, wants in zip(part, size, strict=True))

    scale = scale_for(*part, size)
    assert scale == max((each for each in SCALES if min(part) >= LEAST and fits(each)), default=1)
    assert scale == 1 or fits(scale)


@given(st.integers(1, 9000), st.integers(1, 9000), st.sampled_from([1, *SCALES]))
def test_a_scale_of_the_whole_divides_its_sides(height: int, width: int, scale: int) -> None:
    found = divisor(height, width, scale)
    assert scale % found == 0
    assert height % found == width % found == 0
    assert found == scale or height % (2 * found) or width % (2 * found)


@given(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), st.integers(0, 10**9))
def test_a_part_is_the_drawn_one_or_off_by_less_than_a_scale(size: tuple[int, int], index: int) -> None:
    op, key = RandomResizedCrop(48), key_of(index)
    plan = RowMaker(Pipeline.from_ops([op])).plan(*size, key)
    top, left, rows, columns = RandomResizedCropStage(op, 1).box(*size, Draws(key, 1))
    drawn = (top, left, top + rows, left + columns)
    if plan.scale == 1:
        assert plan.part == drawn
    assert all(number % plan.scale == 0 for number in plan.part)
    assert all(0 <= was - now < 2 * plan.scale for was, now in zip(drawn, plan.part, strict=True))
    assert plan.scale == scale_for(rows, columns, (48, 48))


@pytest.mark.parametrize(
    ("samplings", "scales"),
    [
        ([(1, 1)], [1, 2, 4, 8]),
        ([(1, 1), (1, 1), (1, 1)], [1, 2, 4, 8]),
        ([(2, 2), (1, 1), (1, 1)], [1, 2, 4, 8]),
        ([(1, 2), (1, 1), (1, 1)], [1, 1, 2, 2]),
        ([(2, 1), (1, 1), (1, 1)], [1, 1, 2, 2]),
        ([(2, 2), (2, 1), (2, 1)], [1, 1, 2, 2]),  # 4:2:2 in other words
        ([(1, 4), (1, 1), (1, 1)], [1, 1, 1, 2]),
        ([(1, 3), (1, 1), (1, 1)], [1, 1, 1, 2]),
        ([(0, 2), (1, 1), (1, 1)], [1, 1, 1, 1]),
        ([], [1, 1, 1, 1]),
    ],
)
def test_what_is_subsampled_in_one_direction_is_scaled_with_care(
    samplings: list[tuple[int, int]], scales: list[int]
) -> None:
    assert [scale_of(scale, samplings) for scale in (1, 2, 4, 8)] == scales


def test_only_what_comes_first_is_given_another_scale() -> None:
    for first, scaled in (((), True), ((CenterCrop(600),), False), ((RandomHorizontalFlip(),), False)):
        for op in (RandomResizedCrop(16), Resize((16, 16))):
            plans = [maker_of(*first, op).plan(800, 800, key_of(index)) for index in range(10)]
            assert {plan.scale > 1 for plan in plans} == {scaled}


def test_photos_of_the_usual_size_are_decoded_at_theirs() -> None:
    for size in ((375, 500), (500, 375), (768, 1024), (1080, 1500)):
        for ops in ([RandomResizedCrop(224)], [Resize(256), CenterCrop(224)]):
            assert {maker_of(*ops).plan(*size, key_of(index)).scale for index in range(50)} == {1}


def quality(files: Sequence[bytes], op: RandomResizedCrop | Resize) -> dict[int, list[float]]:
    """By scale: how far rows are from float arithmetic on the same part of a whole decode."""
    found: dict[int, list[float]] = {}
    maker = maker_of(op)
    for index, data in enumerate(files):
        whole = decoded_at(data, 1)
        height, width, _ = whole.shape
        plan = maker.plan(height, width, key_of(index))
        side = maker.fields[0].shape
        exact = float_resize(plan.part.of(whole), (side[0], side[1]), op.interpolation)
        found.setdefault(plan.scale, []).append(decibels(row_of(data, maker, key_of(index)), exact))
    return found


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("kind", ["444", "422", "440", "411", "420", "grey"])
def test_rows_are_within_the_bound_of_float_arithmetic(kind: str, interpolation: Any) -> None:
    files = [file_of(kind, 680, 840, seed) for seed in range(3)]
    found: dict[int, list[float]] = {}
    for side in (20, 34, 50):
        for op in (
            RandomResizedCrop(side, (0.5, 1.0), interpolation=interpolation),
            Resize((side, side), interpolation=interpolation),
        ):
            for scale, values in quality(files, op).items():
                found.setdefault(scale, []).extend(values)
    for scale in SCALES:
        assert len(found[scale]) >= 3
        assert np.mean(found[scale]) >= 50
        assert min(found[scale]) >= 38


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("kind", ["420", "422"])
@pytest.mark.parametrize("scale", SCALES)
def test_rows_of_real_photos_side_by_side_are_within_the_bound(
    photos: Path, scale: int, kind: str, interpolation: Any
) -> None:
    files = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg"))
    length = int(48 * scale * RESIDUAL)  # no more than it takes: the worst that there is
    mosaics = [simplejpeg.encode_jpeg(tiled(files, length, seed), 90, "RGB", kind) for seed in range(5)]
    values = quality(mosaics, Resize((48, 48), interpolation=interpolation))[scale]
    assert np.mean(values) >= 50
    assert min(values) >= 38


def tiled(files: Sequence[Path], length: int, seed: int) -> Pixels:
    """A square of photos side by side, each with its own detail."""
    rng, canvas = np.random.default_rng(seed), np.zeros((length, length, 3), np.uint8)
    for top, left in itertools.product(range(0, length, 250), range(0, length, 250)):
        with Image.open(files[int(rng.integers(len(files)))]) as image:
            tile = np.asarray(image.convert("RGB").crop((0, 0, 250, 250)))
        canvas[top : top + 250, left : left + 250] = tile[: length - top, : length - left]
    return canvas


def expected(data: bytes, maker: RowMaker, key: SampleKey, orientation: int = 1, uneven: bool = False) -> Pixels:
    """The row made of a whole decode: at the plan's scale, where the image's sides allow it when it is turned."""
    height, width = decoded_at(data, 1).shape[:2]
    size = (width, height) if orientation >= 5 else (height, width)
    plan = maker.plan(*size, key)
    scale = min(2, plan.scale // 2) or 1 if uneven else plan.scale
    if orientation != 1:
        scale = divisor(height, width, scale)
    upright = turned(decoded_at(data, scale), orientation)
    row = np.empty(maker.fields[0].shape, maker.fields[0].dtype)
    maker.render(plan, np.ascontiguousarray(plan.part.over(scale).of(upright)), row)
    return row


@pytest.mark.usefixtures("each_path")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(320, 408), (331, 405)])
def test_a_row_comes_from_a_part_of_a_whole_decode_at_the_scale(kind: str, size: tuple[int, int]) -> None:
    data = file_of(kind, *size)
    scales = set()
    for maker in (maker_of(CROP, RandomHorizontalFlip()), maker_of(Resize(24), CenterCrop(24)), maker_of(*LETTERBOX)):
        for index in range(12):
            scales.add(maker.plan(*size, key_of(index)).scale)
            row = expected(data, maker, key_of(index), uneven=kind == "422")
            assert np.array_equal(row_of(data, maker, key_of(index)), row)
    assert scales >= {1, 2, 4}


@pytest.mark.usefixtures("each_path")
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(320, 408), (322, 404), (331, 405)])
def test_a_turned_image_is_scaled_where_its_sides_allow_it(orientation: int, size: tuple[int, int]) -> None:
    data = file_of("420", *size, orientation=orientation)
    for index in range(8):
        for ops in ([CROP], [Decode(exif_orientation=False), CROP]):
            maker = maker_of(*ops)
            tag = orientation if len(ops) == 1 else 1
            assert np.array_equal(row_of(data, maker, key_of(index)), expected(data, maker, key_of(index), tag))


@pytest.mark.usefixtures("each_path")
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(range(5)), min_size=2, max_size=4),
    st.sampled_from(["420", "422", "progressive", "restarts", "grey"]),
    st.sampled_from([1, 6]),
    st.sampled_from(["none", "within", "end"]),
    st.integers(0, 9**9),
)
def test_a_row_is_the_same_alone_and_with_others_of_any_scale(
    which: list[int], kind: str, orientation: int, damage: str, index: int
) -> None:
    data = bytearray(file_of(kind, 320, 408, orientation=orientation))
    at = len(data) * 3 // 4
    if damage == "within":
        data[at : at + 60] = b"\0" * 60
    elif damage == "end":
        del data[at:]
    kinds: list[RowMaker] = [
        maker_of(CROP, views=2), maker_of(CROP, views=2, view=1), maker_of(Resize((40, 40))), maker_of(CenterCrop(90)),
        maker_of(SMALL_CROP),
    ]  # fmt: skip
    makers, key = [kinds[number] for number in which], key_of(index)
    alone = [made(bytes(data), [maker], key)[0] for maker in makers]
    assert made(bytes(data), makers, key) == alone


def made(data: bytes | IndexedScan, makers: Sequence[RowMaker], key: SampleKey) -> list[bytes | None]:
    """Rows of all makers at once; None for one that is not made."""
    rows = [np.full(maker.fields[0].shape, 99, maker.fields[0].dtype) for maker in makers]
    failed: set[int] = set()
    try:
        make_rows(data, key, list(zip(makers, rows, strict=True)))
    except BadSample as bad:
        failed = set(bad.failures)
    return [None if place in failed else row.tobytes() for place, row in enumerate(rows)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["none", "within", "end"])
def test_both_paths_make_the_same_rows(path_of: PathOf, kind: str, damage: str) -> None:
    data = bytearray(file_of(kind, 331, 408))
    if damage != "none":
        at = len(data) * 2 // 3
        data[at : at + 60] = b"\0" * 60 if damage == "within" else b""
        data = data if damage == "within" else data[:at]
    rows = []
    for name in ("pure", "native"):
        with path_of(name):
            rows.append([made(bytes(data), [maker_of(CROP)], key_of(index)) for index in range(20)])
    assert rows[0] == rows[1]


@pytest.mark.usefixtures("each_path")
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(PILLOW_SUBSAMPLINGS),
    st.sampled_from([(320, 408), (331, 405)]),
    st.sampled_from([1, 4, 8]),
    st.sampled_from([(CROP,), (CROP, RandomHorizontalFlip()), (Resize(20), CenterCrop(9)), (SMALL_CROP,), LETTERBOX]),
    st.integers(0, 9**9),
)
def test_a_packed_sample_gives_the_rows_of_the_plain_file(
    kind: str, size: tuple[int, int], mcus: int, ops: tuple[Op, ...], index: int
) -> None:
    scan = scan_of(*size, kind, mcus)
    makers = [maker_of(*ops, views=2, view=view) for view in (0, 1)]
    assert made(scan, makers, key_of(index)) == made(bytes(scan.jpeg), makers, key_of(index))


@lru_cache(maxsize=32)
def scan_of(height: int, width: int, kind: str, mcus: int) -> IndexedScan:
    return indexed(jpeg(height, width, kind), mcus)


@pytest.mark.usefixtures("each_path")
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "CMYK"])
def test_another_format_has_the_same_part_at_its_own_size(kind: str) -> None:
    image = Image.fromarray(detailed(331, 405, 1))
    data = saved(image.convert("CMYK"), "JPEG") if kind == "CMYK" else saved(image, kind)
    whole, maker = Encoded(data).tolerant(), maker_of(CROP)
    for index in range(12):
        plan, row = maker.plan(331, 405, key_of(index)), np.empty((16, 16, 3), np.uint8)
        maker.render(plan, np.ascontiguousarray(plan.part.of(whole)), row)
        assert np.array_equal(row_of(data, maker, key_of(index)), row)


def test_each_scale_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data, key = file_of("420", 320, 408), key_of(0)
    makers = [
        maker_of(Resize((40, 40))),
        maker_of(CenterCrop(90)),
        maker_of(Resize((20, 20))),
        maker_of(Resize((22, 40))),
    ]
    decoded: list[tuple[Box, int]] = []
    clean = Encoded.clean

    def counted(encoded: Encoded, part: Box, scale: int) -> Pixels | None:
        decoded.append((part, scale))
        return clean(encoded, part, scale)

    monkeypatch.setattr(Encoded, "clean", counted)
    assert None not in made(data, makers, key)
    assert decoded == [(Box(115, 159, 205, 249), 1), (Box(0, 0, 320, 408), 2), (Box(0, 0, 320, 408), 4)]


@pytest.mark.parametrize(
    "ops",
    [
        [RandomResizedCrop(24, scale=(0.5, 1.0)), RandomHorizontalFlip()],
        [RandomShortestSize([40, 45]), RandomCrop(32)],
        [Mosaic(32), CenterCrop(40)],
    ],
)
def test_what_follows_an_image_does_not_see_its_scale(ops: list[Op]) -> None:
    """Boxes, masks and points of a JPEG that is decoded at a smaller scale are those of the same pixels in a PNG."""
    pipeline = Pipeline.from_ops([*ops, PadBoxes(8), PadKeypoints(8), PadTokens(8)], 1, COLUMNS)
    files = [file_of("420", 512, 640, seed) for seed in range(2)]
    scenes = [scene(number, 512, 640) for number in range(2)]
    whole = [encoded(decoded_at(file, 1)) for file in files]
    images = list(zip(scenes, files, whole, strict=True))
    sources = [Scenes([each[0] | {"image": each[which]} for each in images]) for which in (1, 2)]
    jpegs, pngs = (rows_of(source.stream(), pipeline, 2)[0] for source in sources)
    scaled, exact = jpegs.pop("image"), pngs.pop("image")
    assert same(jpegs, pngs)
    assert not np.array_equal(scaled, exact)
    assert decibels(scaled, exact.astype(np.float64)) > 45
