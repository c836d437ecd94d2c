"""A row in one call against the same row step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from prepserver.pipeline import kinds
from prepserver.pipeline.ops import (
    ClampBoxes,
    Decode,
    PadBoxes,
    PadTokens,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    SanitizeBoxes,
    ToDtype,
    ToLayout,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.protocol.packed import IndexedScan
from prepserver.transform import BadSample, RowMaker, SampleKey
from prepserver.transform import make_rows as make_record
from prepserver.transform.decode import scratch
from prepserver.transform.native.compiled import VECTORS
from prepserver.transform.whole import WholeCrop
from tests.support.images import make_rows
from tests.support.photos import indexed, pixels, saved
from tests.support.photos import jpeg as drawn

Pixels = npt.NDArray[np.uint8]
PathOf = Callable[[str], Any]
KEY = SampleKey(3, 1, 4)
TRAIN = [RandomResizedCrop(32), RandomHorizontalFlip()]


@pytest.fixture(scope="module", autouse=True)
def compiled(path_of: PathOf) -> Iterator[None]:
    with path_of("native"):
        scratch(1 << 20)  # else the first parts find too little room
        yield


def of_kind(kind: str, height: int, width: int, orientation: int) -> bytes | IndexedScan:
    tags = Image.Exif()
    tags[0x0112] = orientation
    if kind == "restarts":
        return saved(pixels(height, width), "JPEG", exif=tags, restart_marker_blocks=3)
    data = drawn(height, width, "420" if kind == "indexed" else kind)
    block = tags.tobytes()
    data = data[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block + data[2:]
    return indexed(data) if kind == "indexed" else data


def whole(ops: list[Any], view: int = 0) -> WholeCrop:
    found = RowMaker(Pipeline.from_ops(ops, views=view + 1), view).whole
    assert found is not None
    return found


def by_steps(ops: list[Any], data: bytes | IndexedScan, key: SampleKey, view: int = 0) -> bytes:
    maker = RowMaker(Pipeline.from_ops(ops, views=view + 1), view)
    maker.whole = None
    row = np.full(maker.fields[0].shape, 99, maker.fields[0].dtype)
    make_rows(data, key, [(maker, row)])
    return row.tobytes()


def at_once(ops: list[Any], data: bytes | IndexedScan, key: SampleKey, view: int = 0) -> bytes | None:
    crop = ops[1] if isinstance(ops[0], Decode) else ops[0]
    row = np.full((*crop.size, 3), 99, np.uint8)
    return row.tobytes() if whole(ops, view).make(data, key, row) else None


@settings(max_examples=150, deadline=None)
@given(
    size=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    area=st.tuples(st.floats(0.0, 1.0), st.floats(0.01, 1.0)).map(sorted),
    ratio=st.tuples(st.floats(0.1, 8.0), st.floats(0.1, 8.0)).map(sorted),
    image=st.tuples(st.integers(1, 130), st.integers(1, 130)),
    kind=st.sampled_from(["444", "420", "422", "440", "411", "Gray", "restarts", "indexed"]),
    orientation=st.integers(1, 8),
    upright=st.booleans(),
    vectors=st.sampled_from(VECTORS),
    flips=st.sampled_from([None, 0.0, 0.5, 1.0]),
    key=st.builds(SampleKey, st.integers(0, 2**63), st.integers(0, 9), st.integers(0, 2**63)),
    view=st.integers(0, 2),
)
def test_a_row_made_at_once_is_the_one_made_step_by_step(
    vectors_up_to: PathOf,
    size: tuple[int, int],
    area: tuple[float, float],
    ratio: tuple[float, float],
    image: tuple[int, int],
    kind: str,
    orientation: int,
    upright: bool,
    vectors: str,
    flips: float | None,
    key: SampleKey,
    view: int,
) -> None:
    ops: list[Any] = [Decode(exif_orientation=upright), RandomResizedCrop(size, area, ratio)]
    if flips is not None:
        ops.append(RandomHorizontalFlip(flips))
    data = of_kind(kind, *image, orientation)
    with vectors_up_to(vectors):
        made = at_once(ops, data, key, view)
    assert made is None or made == by_steps(ops, data, key, view)


@pytest.mark.parametrize("vectors", VECTORS)
@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("kind", ["420", "restarts", "indexed"])
def test_nearly_all_rows_of_plain_samples_are_made_at_once(
    vectors_up_to: PathOf, kind: str, orientation: int, vectors: str
) -> None:
    given_ = of_kind(kind, 100, 140, orientation)
    with vectors_up_to(vectors):
        made = [at_once(TRAIN, given_, SampleKey(0, 0, index)) for index in range(200)]
    assert made.count(None) < 10  # eight words are good for three tries at a crop that fits
    for index in range(0, 200, 20):
        assert made[index] in (None, by_steps(TRAIN, given_, SampleKey(0, 0, index)))


@pytest.mark.parametrize("last", ["HWC", None])
def test_the_rows_own_layout_may_be_named(last: str | None) -> None:
    ops: list[Any] = [Decode(), *TRAIN, *([ToLayout(last)] if last else [])]
    assert at_once(ops, drawn(90, 90), KEY) == by_steps(TRAIN, drawn(90, 90), KEY)


@pytest.mark.parametrize(
    "ops",
    [
        [RandomResizedCrop(32, interpolation="bicubic")],
        [RandomResizedCrop(32), RandomVerticalFlip()],
        [RandomResizedCrop(32), RandomHorizontalFlip(), RandomHorizontalFlip()],
        [RandomHorizontalFlip(), RandomResizedCrop(32)],
        [RandomResizedCrop(32), ToDtype("float32")],
        [RandomResizedCrop(32), ToLayout("CHW")],
        [Resize((32, 32))],
    ],
)
def test_other_pipelines_are_left_to_the_steps(ops: list[Any]) -> None:
    assert RowMaker(Pipeline.from_ops(ops)).whole is None


def test_samples_that_are_not_plain_are_left_to_the_steps() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (80, 120, 3), np.uint8))
    turned, upright = Image.Exif(), Image.Exif()
    turned[0x0112], upright[0x0112] = 6, 1
    plain = saved(image, "JPEG")
    assert at_once(TRAIN, plain, KEY) is not None
    assert at_once(TRAIN, saved(image, "JPEG", exif=upright), KEY) is not None
    assert at_once([Decode(exif_orientation=False), *TRAIN], saved(image, "JPEG", exif=turned), KEY) is not None
    odd = {
        "cmyk": saved(image.convert("CMYK"), "JPEG"),
        "png": saved(image, "PNG"),
        "cut": plain[:700],
        "nothing": b"",
        "no bytes": memoryview(plain),
    }
    for name, data in odd.items():
        assert at_once(TRAIN, data, KEY) is None, name  # type: ignore[arg-type]
    assert at_once([Decode(max_pixels=80 * 120 - 1), *TRAIN], plain, KEY) is None
    assert at_once([Decode(max_pixels=80 * 120), *TRAIN], plain, KEY) is not None
    assert at_once([RandomResizedCrop(2, scale=(1, 1), ratio=(1, 1))], drawn(96, 96), KEY) is None  # decoded at a scale
    assert at_once([RandomResizedCrop(96, scale=(1, 1), ratio=(1, 1))], drawn(96, 96), KEY) is None  # not resized
    assert (
        at_once([RandomResizedCrop(32, scale=(1, 1), ratio=(2, 2))], drawn(96, 96), KEY) is None
    )  # the middle, in the end


def test_an_indexed_image_not_a_whole_record_is_left_to_steps() -> None:
    scan = indexed(drawn(80, 80))
    assert at_once(TRAIN, scan, KEY) is not None
    parted = IndexedScan(scan.head, memoryview(bytes(scan.lengths)), memoryview(bytes(scan.jpeg)))
    assert at_once(TRAIN, parted, KEY) is None
    assert by_steps(TRAIN, parted, KEY) == by_steps(TRAIN, scan, KEY)


def test_a_row_of_another_kind_is_the_steps_to_refuse() -> None:
    data, maker = drawn(80, 80), RowMaker(Pipeline.from_ops(TRAIN))
    for row in (np.empty((31, 32, 3), np.uint8), np.empty((32, 32, 3), np.int8), np.empty((32, 32), np.uint8)):
        with pytest.raises(ValueError, match="the row is"):
            make_rows(data, KEY, [(maker, row)])
    apart = np.empty((32, 64, 3), np.uint8)[:, ::2]
    make_rows(data, KEY, [(maker, apart)])
    assert apart.tobytes() == by_steps(TRAIN, data, KEY)


def test_a_sample_nobody_can_decode_has_the_words_of_the_steps() -> None:
    maker = RowMaker(Pipeline.from_ops(TRAIN))
    with pytest.raises(BadSample):
        make_rows(drawn(80, 80)[:700], KEY, [(maker, np.empty((32, 32, 3), np.uint8))])


@pytest.mark.parametrize("orientation", [1, 6, 8])
@pytest.mark.parametrize(
    "flip", [[], [RandomHorizontalFlip()], [ClampBoxes(), RandomHorizontalFlip(), SanitizeBoxes()]]
)
def test_boxes_and_text_beside_an_image_are_those_of_steps(flip: list[Any], orientation: int) -> None:
    """What follows the image is moved by what the one call says that it drew."""
    columns = {"image": kinds.Image(), "boxes": kinds.Boxes(), "labels": kinds.PerBox(), "tokens": kinds.Tokens()}
    ops = [RandomResizedCrop(32), *flip, PadBoxes(4), PadTokens(3)]
    maker = RowMaker(Pipeline.from_ops(ops, columns=columns))
    by_steps = RowMaker(Pipeline.from_ops(ops, columns=columns))
    by_steps.whole, once = None, 0
    record: dict[str, Any] = {
        "image": of_kind("420", 100, 140, orientation),
        "boxes": np.array([[3, 4, 50, 60], [-5, 20, 90, 99], [60, 0, 99, 30]], np.float32),
        "labels": np.arange(3),
        "tokens": np.array([5, 6]),
    }
    for index in range(30):
        key = SampleKey(1, 0, index)
        made = [[np.full(each.shape, 99, each.dtype) for each in maker.fields] for _ in range(2)]
        for one, outs in zip((maker, by_steps), made, strict=True):
            make_record(record, key, [(one, outs)])
        assert [each.tobytes() for each in made[0]] == [each.tobytes() for each in made[1]]
        assert maker.whole is not None
        once += maker.whole.make(record["image"], key, made[0][maker.images[0].out]) is not None
    assert once > 20
