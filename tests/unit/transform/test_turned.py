"""EXIF orientations by the part: only what a crop needs is decoded and turned, with the bytes of the whole turned."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from prepserver.pipeline.ops import (
    CenterCrop,
    Decode,
    Op,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.protocol.packed import IndexedScan
from prepserver.transform import RowMaker, SampleKey
from prepserver.transform.decode import Encoded
from prepserver.transform.indexed import EncodedScan
from prepserver.transform.orientation import turned
from prepserver.transform.scale import divisor
from prepserver.transform.stage import Box
from tests.support.images import make_rows
from tests.support.photos import indexed, saved

Pixels = npt.NDArray[np.uint8]

KINDS: dict[str, dict[str, Any]] = {
    "444": {"subsampling": 0}, "422": {"subsampling": 1}, "420": {"subsampling": 2},
    "progressive": {"subsampling": 2, "progressive": True}, "restarts": {"subsampling": 2, "restart_marker_rows": 1},
    "indexed": {"subsampling": 2}, "grey": {}, "png": {},
}  # fmt: skip
PIPELINES: dict[str, list[Op]] = {
    "train": [RandomResizedCrop(24), RandomHorizontalFlip()],
    "bicubic": [RandomResizedCrop((20, 31), interpolation="bicubic"), RandomVerticalFlip()],
    "validate": [Resize(40), CenterCrop(32)],
    "crop": [RandomCrop((50, 60), pad_if_needed=True), RandomHorizontalFlip()],
    "pad": [Pad(3, padding_mode="reflect"), RandomCrop(40, pad_if_needed=True)],
    "small": [RandomResizedCrop(9, scale=(0.3, 1.0)), RandomHorizontalFlip()],
}
GOLDEN = {
    1: "5f4c4fced81c9b02",
    2: "28829b96233f8488",
    3: "9525c67fb81361e7",
    4: "5aa1e4742c59b08c",
    5: "93cc396173c0214b",
    6: "10df276d069d42bd",
    7: "ea9fdca7bedc0546",
    8: "e1b0003e3a226a3a",
}
"""Digests of rows from when a turned image was decoded whole, turned, and cropped then."""

pytestmark = pytest.mark.usefixtures("each_path")


def coarse(height: int, width: int) -> Pixels:
    """Blocks of colours and grain, by integers alone: the same on every machine."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 200, (-(-height // 8), -(-width // 8), 3)).repeat(8, 0).repeat(8, 1)
    return (blocks[:height, :width] + rng.integers(0, 56, (height, width, 3))).astype(np.uint8)


@lru_cache(maxsize=256)
def sample(kind: str, orientation: int, height: int, width: int) -> bytes | IndexedScan:
    image, tags = Image.fromarray(coarse(height, width)), Image.Exif()
    tags[0x0112] = orientation
    image = image.convert("L") if kind == "grey" else image
    data = saved(image, "PNG" if kind == "png" else "JPEG", exif=tags, **KINDS[kind])
    return indexed(data) if kind == "indexed" else data


def row_of(data: bytes | IndexedScan, maker: RowMaker, key: SampleKey) -> Pixels:
    row = np.full(maker.fields[0].shape, 99, maker.fields[0].dtype)
    make_rows(data, key, [(maker, row)])
    return row


@pytest.mark.parametrize("orientation", GOLDEN)
def test_rows_of_every_orientation_keep_their_bytes(orientation: int) -> None:
    total = hashlib.sha256()
    for ops in PIPELINES.values():
        maker = RowMaker(Pipeline.from_ops(ops))
        for kind in KINDS:
            for size in ((97, 130), (64, 48), (160, 240), (300, 200), (9, 7)):
                data = sample(kind, orientation, *size)
                for index in range(2):
                    total.update(row_of(data, maker, SampleKey(5, 0, index)).tobytes())
    assert total.hexdigest()[:16] == GOLDEN[orientation]


def by_the_whole(data: bytes | IndexedScan, maker: RowMaker, key: SampleKey) -> Pixels:
    """The row of the whole image, decoded, turned, and cropped then."""
    encoded = EncodedScan(data) if isinstance(data, IndexedScan) else Encoded(data)
    plan = maker.plan(*encoded.size(maker.upright), key)
    orientation = encoded.orientation if maker.upright else 1
    scale = encoded.scale(plan.scale)
    if orientation != 1:
        scale = divisor(encoded.height, encoded.width, scale)
    whole = encoded.clean(Box(0, 0, encoded.height, encoded.width), scale)
    if whole is None:
        whole, scale = encoded.tolerant(), 1
    row = np.empty(maker.fields[0].shape, maker.fields[0].dtype)
    maker.render(plan, np.ascontiguousarray(plan.part.over(scale).of(turned(whole, orientation))), row)
    return row


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(list(KINDS)), st.integers(1, 8), st.sampled_from(list(PIPELINES)),
    st.sampled_from([(97, 130), (64, 48), (160, 240), (301, 202), (9, 7), (1, 50)]), st.integers(0, 99),
)  # fmt: skip
def test_a_row_is_that_of_the_whole_image_turned(
    kind: str, orientation: int, pipeline: str, size: tuple[int, int], index: int
) -> None:
    data, key = sample(kind, orientation, *size), SampleKey(1, 2, index)
    for first in ([], [Decode(exif_orientation=False)]):
        maker = RowMaker(Pipeline.from_ops([*first, *PIPELINES[pipeline]]))
        assert np.array_equal(row_of(data, maker, key), by_the_whole(data, maker, key))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(KINDS)), st.integers(1, 8), st.lists(st.sampled_from(list(PIPELINES)), min_size=2, max_size=4),
    st.sampled_from([(97, 130), (160, 240)]), st.integers(0, 99),
)  # fmt: skip
def test_rows_that_share_a_turned_sample_are_those_made_alone(
    kind: str, orientation: int, pipelines: list[str], size: tuple[int, int], index: int
) -> None:
    data, key = sample(kind, orientation, *size), SampleKey(1, 2, index)
    upright = [RowMaker(Pipeline.from_ops(PIPELINES[name])) for name in pipelines]
    makers = [*upright, RowMaker(Pipeline.from_ops([Decode(exif_orientation=False), *PIPELINES[pipelines[0]]]))]
    rows = [np.full(maker.fields[0].shape, 99, maker.fields[0].dtype) for maker in makers]
    make_rows(data, key, list(zip(makers, rows, strict=True)))
    for maker, row in zip(makers, rows, strict=True):
        assert np.array_equal(row, by_the_whole(data, maker, key))


@contextmanager
def decoded_parts() -> Iterator[list[Box]]:
    """What is asked of the decoders meanwhile, as stored."""
    parts: list[Box] = []
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Encoded, EncodedScan):

            def counted(encoded: Encoded, part: Box, scale: int = 1, real: Any = kind.clean) -> Any:
                parts.append(part)
                return real(encoded, part, scale)

            patch.setattr(kind, "clean", counted)
        yield parts


@pytest.mark.parametrize("kind", ["420", "indexed"])
@pytest.mark.parametrize("orientation", [3, 6])
def test_no_more_of_a_turned_sample_is_decoded_than_its_crop(kind: str, orientation: int) -> None:
    data = sample(kind, orientation, 160, 240)
    maker = RowMaker(Pipeline.from_ops([RandomCrop((50, 60))]))
    with decoded_parts() as parts:
        row_of(data, maker, SampleKey(0, 0, 1))
    assert {(part.bottom - part.top, part.right - part.left) for part in parts} == {
        (60, 50) if orientation == 6 else (50, 60)
    }
