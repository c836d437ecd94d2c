"""Chains of ops on small images: what a step gives the next one is any view, and the rows are those of plain arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prepserver.pipeline.ops import (
    CenterCrop,
    ColorJitter,
    Grayscale,
    Op,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToDtype,
    ToLayout,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.transform import RowMaker, SampleKey

pytestmark = pytest.mark.usefixtures("each_path")

SIDE = st.integers(1, 20)
SIZE = st.tuples(SIDE, SIDE)
MODES = st.sampled_from(["bilinear", "bicubic"])
FIXED = st.one_of(
    st.builds(lambda size, mode: Resize(size, interpolation=mode), SIZE, MODES),
    st.builds(lambda size, mode: RandomResizedCrop(size, interpolation=mode), SIZE, MODES),
    st.builds(CenterCrop, SIZE),
    st.builds(lambda size: RandomCrop(size, pad_if_needed=True), SIZE),
)
FREE = st.one_of(
    FIXED,
    st.builds(Resize, SIDE),
    st.builds(Pad, st.integers(1, 3), padding_mode=st.sampled_from(["constant", "edge", "reflect", "symmetric"])),
    st.sampled_from([
        ColorJitter(0.4, 0.4, 0.4, 0.1), ColorJitter(0.4), Grayscale(3), RandomHorizontalFlip(1.0),
        RandomVerticalFlip(1.0),
    ]),
)  # fmt: skip
LAST = st.sampled_from([(), (Grayscale(1),), (ToDtype("float32"),), (ToLayout("CHW"),), (ColorJitter(0.4),)])


def by_plain_arrays(maker: RowMaker, image: npt.NDArray[Any], key: SampleKey) -> npt.NDArray[Any]:
    plan = maker.plan(image.shape[0], image.shape[1], key)
    image = plan.part.of(image)
    for part, step in plan.steps:
        image = np.ascontiguousarray(image if part is None else part.of(image))
        image = image if step is None else step(image, None)
    return image.transpose(2, 0, 1) if maker._planar else image


@settings(max_examples=150, deadline=None)
@given(size=SIZE, ops=st.lists(FREE, max_size=3), fixed=FIXED, last=LAST, seed=st.integers(0, 5))
def test_any_chain_makes_the_rows_of_plain_arrays(
    size: tuple[int, int], ops: list[Op], fixed: Op, last: tuple[Op, ...], seed: int
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    key = SampleKey(seed, 0, 1)
    maker = RowMaker(Pipeline.from_ops([*ops, fixed, *last]))
    guarded = np.full((3, *maker.fields[0].shape), 77, maker.fields[0].dtype)
    plan = maker.plan(*size, key)
    maker.render(plan, plan.part.of(image), guarded[1])
    assert np.array_equal(guarded[1], by_plain_arrays(maker, image, key))
    assert np.all(guarded[0] == 77)
    assert np.all(guarded[2] == 77)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(8, 8), (40, 8), (8, 56), (40, 90), (90, 56)])
def test_a_planar_image_is_resized_as_an_interleaved_one(size: tuple[int, int], mode: str) -> None:
    image = np.random.default_rng(1).integers(0, 256, (40, 56, 3), dtype=np.uint8)
    planar = np.ascontiguousarray(image.transpose(2, 0, 1)).transpose(1, 2, 0)
    rows: list[npt.NDArray[np.uint8]] = []
    for pixels in (image, planar):
        maker = RowMaker(Pipeline.from_ops([Resize(size, interpolation=mode)]))
        rows.append(np.zeros(maker.fields[0].shape, np.uint8))
        plan = maker.plan(40, 56, SampleKey(0, 0, 0))
        maker.render(plan, pixels, rows[-1])
    assert np.array_equal(rows[0], rows[1])
