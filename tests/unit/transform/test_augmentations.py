"""Random pipelines of all ops: the same bytes with and without compiled code, and masks that go where images go."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Picture

from prepserver.pipeline.affine import affine
from prepserver.pipeline.kinds import Image, Mask
from prepserver.pipeline.ops import (
    JPEG,
    CenterCrop,
    Grayscale,
    Normalize,
    Only,
    Op,
    RandAugment,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomOrder,
    RandomPerspective,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    ToDtype,
    ToLayout,
    TrivialAugmentWide,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.transform import BadSample, RowMaker, SampleKey, make_rows, native, row_makers
from prepserver.transform.ops import stage_of
from prepserver.transform.warp import perspective, warp, warped_points
from tests.support.augmentations import ANY, SAME_SIZE

Pixels = npt.NDArray[np.uint8]
PathOf = Callable[..., AbstractContextManager[None]]
COLUMNS = {"image": Image(), "mask": Mask()}

LAST = st.sampled_from([(), (Grayscale(1),), (ToDtype("float32", scale=True), RandomErasing(1)), (ToLayout("CHW"),)])


def png(image: Pixels) -> bytes:
    file = io.BytesIO()
    Picture.fromarray(image).save(file, "PNG")
    return file.getvalue()


def rows_of(pipeline: Pipeline, record: dict[str, Any], key: SampleKey) -> dict[str, Any]:
    made = {field.name: np.full(field.shape, 77, field.dtype) for field in pipeline.fields}
    targets = [(maker, [made[field.name] for field in maker.fields]) for maker in row_makers(pipeline)]
    make_rows(record, key, targets)
    return made


@settings(max_examples=15, deadline=None)
@given(ops=st.lists(ANY, min_size=1, max_size=4), last=LAST, seed=st.integers(0, 99))
def test_any_pipeline_makes_the_same_row_on_both_paths(
    path_of: PathOf, ops: list[Op], last: tuple[Op, ...], seed: int
) -> None:
    pipeline = Pipeline.from_ops([*ops, Resize((16, 16)), *last], 1, COLUMNS)
    assert Pipeline.from_wire(pipeline.to_wire(), COLUMNS) == pipeline
    image = np.random.default_rng(seed).integers(0, 256, (24, 33, 3), np.uint8)
    record, key = {"image": png(image), "mask": png(image[:, :, 0].copy())}, SampleKey(seed, 0, 1)
    made: list[dict[str, Any]] = []
    for name in ("pure", "native"):
        with path_of(name):
            made.append(rows_of(pipeline, record, key))
    assert made[0].keys() == made[1].keys()
    assert all(np.array_equal(made[0][field], made[1][field]) for field in made[0])
    # Steps never write to what they get, and what they write to is complete.
    maker = RowMaker(Pipeline.from_ops([*ops, Resize((16, 16)), *last]))
    plan = maker.plan(24, 33, key)
    pixels: Any = plan.part.of(image).copy()
    for part, step in plan.steps:
        pixels = np.ascontiguousarray(pixels if part is None else part.of(pixels))
        before = pixels.copy()
        result = pixels if step is None else step(pixels, None)
        assert np.array_equal(pixels, before)
        pixels = result
    assert np.array_equal(pixels.transpose(2, 0, 1) if maker._planar else pixels, made[0]["image"])


@pytest.mark.parametrize(
    "op",
    [
        RandomRotation(40),
        RandomRotation(40, expand=True),
        RandomAffine(20, (0.1, 0.1), (0.7, 1.4), 10),
        RandomPerspective(0.5, 1, "nearest"),
        RandAugment(3, 20),
        TrivialAugmentWide(),
        RandomApply([RandomRotation(30), RandomCrop(20, pad_if_needed=True)], p=0.7),
        RandomChoice([RandomHorizontalFlip(1), RandomAffine(30), RandomCrop(19, pad_if_needed=True)]),
        RandomOrder([RandomHorizontalFlip(), RandomVerticalFlip(), RandomRotation(15)]),
    ],
)
def test_a_mask_goes_where_its_image_goes(op: Op) -> None:
    rows, columns = np.mgrid[:40, :56] // 8
    mask = np.asarray(100 + rows * 8 + columns, np.uint8)
    record = {"image": png(np.repeat(mask[:, :, None], 3, axis=2)), "mask": png(mask)}
    pipeline = Pipeline.from_ops([op, CenterCrop((40, 56))], 1, COLUMNS)
    for index in range(12):
        made = rows_of(pipeline, record, SampleKey(1, 0, index))
        outside = (made["mask"] == 0) == (made["image"] == 0).all(axis=2)
        assert outside.mean() > 0.99 or isinstance(op, RandAugment | TrivialAugmentWide)
        if not isinstance(op, RandAugment | TrivialAugmentWide):  # they change colours, too
            assert (made["image"][..., 0] == made["mask"]).all()


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 9, 1), (40, 2, 3), (31, 33, 1), (31, 33, 3)])
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_a_warp_has_the_same_bytes_with_compiled_code(path_of: PathOf, shape: tuple[int, int, int], mode: str) -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, shape, np.uint8)
    matrices = [affine(shape[:2], *rng.uniform(-180, 180, 1)) for _ in range(3)]
    matrices += [(*rng.uniform(-2, 2, 6), *rng.uniform(-0.1, 0.1, 2)) for _ in range(5)]
    matrices += [(1e300, 1e300, -1e300, 0.0, 0.0, 0.0, -1e-3, 1e300), (0.0,) * 8]
    for matrix in matrices:
        made = []
        for name in ("pure", "native"):
            with path_of(name):
                around = np.full((3, 21, 34, shape[2]), 77, np.uint8)
                warp(image, around[1], matrix, (21, 34), mode, (9.0,))
                assert (around[::2] == 77).all()
                made.append(around[1])
        assert np.array_equal(*made)


def test_points_go_where_the_pixels_go() -> None:
    corners: list[tuple[float, float]] = [(5, 3), (70, 8), (80, 55), (2, 50)]
    matrix = perspective((60, 90), corners)
    assert matrix is not None
    pixels = np.array([(0, 0), (89, 0), (89, 59), (0, 59)])
    assert np.allclose(warped_points(pixels, matrix), corners)
    for each in (affine((60, 90), 20, (5, -3), 1.3, (4, 9)), matrix):
        for x, y in ((45, 30), (40, 20), (60, 35)):
            image = np.zeros((60, 90, 1), np.uint8)
            image[y - 1 : y + 2, x - 1 : x + 2] = 255
            rows, columns = warp(image, None, each, (60, 90), "bilinear", (0.0,))[..., 0].nonzero()
            middle = warped_points(np.array([x + 0.5, y + 0.5]), each)
            assert np.abs(middle - (columns.mean() + 0.5, rows.mean() + 0.5)).max() < 0.6


def test_compiled_code_refuses_what_it_cannot_warp(path_of: PathOf) -> None:
    with path_of("native"):
        kernels = native.kernels()
        assert kernels is not None
        image, identity = np.zeros((8, 8, 3), np.uint8), affine((8, 8))
        for wrong, into in (
            (image[:, ::2], image.copy()),
            (image[..., ::-1], image.copy()),
            (image.astype(np.float32), image.copy()),
            (image, np.zeros((8, 8, 1), np.uint8)),
            (np.zeros((8, 8, 2), np.uint8), np.zeros((8, 8, 2), np.uint8)),
        ):
            assert not kernels.warp(wrong, identity, False, b"\0" * wrong.shape[2], into)


@pytest.mark.parametrize("op", [*SAME_SIZE, Normalize([0.5], [0.5]), Grayscale(1), ToDtype("float32")], ids=repr)
def test_what_keeps_shape_and_dtype_works_within_one_array(op: Op) -> None:
    """As the row maker sees it: from there on, steps read the row's memory and write to it."""
    dtype = np.float32 if isinstance(op, Normalize) else np.uint8
    before: list[Op] = [CenterCrop((20, 30)), *([ToDtype("float32")] if dtype == np.float32 else [])]
    maker = RowMaker(Pipeline.from_ops([*before, op]))
    flips, changes = (RandomHorizontalFlip, RandomVerticalFlip), op in (Grayscale(1), ToDtype("float32"))
    lands = changes or (op.moves and not isinstance(op, flips))
    assert maker.images[0].landing == len(before) - (not lands)
    if lands:
        return
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8).astype(dtype)
    for index in range(10):
        step = maker.plan(20, 30, SampleKey(0, 0, index)).steps[-1][1]
        if step is None:
            continue
        within = image.copy()
        apart = step(image, np.zeros_like(image))
        assert step(within, within) is within
        assert np.array_equal(apart, within)
        assert np.array_equal(step(image, None), within)


def test_a_choice_follows_its_weights() -> None:
    stage = stage_of(RandomChoice([CenterCrop(5), CenterCrop(6), CenterCrop(7)], p=[0, 1, 3]), 1)
    from prepserver.transform.stage import Draws

    drawn = [stage.draw(9, 9, Draws(SampleKey(0, 0, n), 1)).height for n in range(300)]
    assert drawn.count(5) == 0
    assert 50 < drawn.count(6) < 100


def test_an_image_too_long_for_a_jpeg_is_a_bad_sample() -> None:
    pipeline = Pipeline.from_ops([JPEG(50), CenterCrop(4)])
    with pytest.raises(BadSample, match="1x65501 pixels are too many for JPEG"):
        rows_of(pipeline, {"image": png(np.zeros((1, 65501, 3), np.uint8)), "label": 0}, SampleKey(0, 0, 0))


def test_only_one_image_is_erased_if_so_asked() -> None:
    pipeline = Pipeline.from_ops([CenterCrop(16), Only("b", RandomErasing(1))], 1, {"a": Image(), "b": Image()})
    image = png(np.full((16, 16, 3), 9, np.uint8))
    made = rows_of(pipeline, {"a": image, "b": image}, SampleKey(0, 0, 0))
    assert made["a"].min() == 9
    assert made["b"].min() == 0
