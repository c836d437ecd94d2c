"""Masks go where their image goes: the same crop, flip, pad and size, by the nearest pixel."""

from __future__ import annotations

import inspect
import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Picture

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image, Label, Mask
from prepserver.pipeline.op import WarpOp
from prepserver.pipeline.ops import (
    OPS,
    AutoAugment,
    CenterCrop,
    ColorJitter,
    ElasticTransform,
    Grayscale,
    Mosaic,
    Normalize,
    Only,
    Op,
    Pad,
    RandAugment,
    RandomAffine,
    RandomApply,
    RandomCrop,
    RandomHorizontalFlip,
    RandomPerspective,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    RandomZoomOut,
    Resize,
    ToDtype,
    ToLayout,
    TrivialAugmentWide,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import Columns
from prepserver.transform import BadSample, SampleKey, make_rows, row_makers
from tests.support.scenes import Scenes, scene
from tests.support.scenes import rows_of as scenes_of

Pixels = npt.NDArray[np.uint8]
COLUMNS: Columns = {"image": Image(), "mask": Mask(), "label": Label()}
HEIGHT, WIDTH = 40, 56


def png(pixels: Pixels, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Picture.fromarray(pixels).save(buffer, "PNG", **options)
    return buffer.getvalue()


def places(height: int = HEIGHT, width: int = WIDTH) -> Pixels:
    """Blocks of 8 by 8 pixels, each with a number of its own: where a pixel came from can be seen."""
    rows, columns = np.mgrid[:height, :width] // 8
    return np.asarray(rows * 8 + columns + 1, np.uint8)


def rows_of(
    ops: list[Op], record: dict[str, Any], index: int = 0, views: int = 1, columns: Columns = COLUMNS
) -> dict[str, Any]:
    pipeline = Pipeline.from_ops(ops, views, columns)
    makers = row_makers(pipeline)
    made = {f.name: np.zeros(f.shape, f.dtype) for f in pipeline.fields}
    make_rows(record, SampleKey(3, 0, index), [(maker, [made[f.name] for f in maker.fields]) for maker in makers])
    return made


def sample(mask: Pixels | None = None, image: Pixels | None = None) -> dict[str, Any]:
    """An image whose three channels are its mask, so that they can be compared after any op."""
    mask = places() if mask is None else mask
    image = np.repeat(mask[:, :, None], 3, axis=2) if image is None else image
    return {"image": png(image), "mask": png(mask), "label": 1}


MOVES: dict[str, list[Op]] = {
    "centre crop": [CenterCrop(24)],
    "centre crop beyond the image": [CenterCrop((60, 70))],
    "random crop": [RandomCrop(17)],
    "padded random crop": [RandomCrop(38, padding=7, fill=9)],
    "reflected": [Pad((5, 3), padding_mode="reflect"), CenterCrop((46, 66))],
    "flips": [RandomHorizontalFlip(), RandomVerticalFlip(), CenterCrop((HEIGHT, WIDTH))],
    "crop, flip, crop": [RandomCrop(30), RandomHorizontalFlip(), RandomCrop(20)],
}


@pytest.mark.parametrize("name", MOVES)
def test_a_move_without_a_new_size_moves_every_pixel_alike(name: str) -> None:
    for index in range(20):
        made = rows_of(MOVES[name], sample(), index)
        assert (made["image"] == made["mask"][:, :, None]).all()


@pytest.mark.parametrize(
    "ops",
    [
        *(each for name, each in MOVES.items() if name != "padded random crop"),
        [RandomResizedCrop(31)],
        [RandomCrop(38, padding=7)],
        [RandomAffine(40, (0.2, 0.2), (0.5, 1.5), 20), CenterCrop(30)],
        [RandomPerspective(0.6, p=1), CenterCrop(30)],
        [ElasticTransform(300.0), CenterCrop(30)],
        [RandomRotation(90), RandomZoomOut(p=1), CenterCrop(60)],
    ],
    ids=str,
)
def test_numbers_of_16_bits_move_as_those_of_8(ops: list[Op]) -> None:
    wide = np.asarray(places() * np.uint16(257))
    columns: Columns = {**COLUMNS, "mask": Mask(dtype="uint16")}
    for index in range(8):
        made = rows_of(ops, {**sample(), "mask": png(wide)}, index, columns=columns)["mask"]
        assert made.dtype == np.uint16
        assert (made == rows_of(ops, sample(), index)["mask"] * np.uint16(257)).all()
        narrow = rows_of(ops, sample(), index, columns=columns)["mask"]
        assert (narrow == rows_of(ops, sample(), index)["mask"]).all(), "a file of 8 bits is one of 16, too"


@pytest.mark.parametrize("op", [Resize((20, 28)), Resize((80, 112)), RandomResizedCrop(64), RandomResizedCrop((8, 12))])
def test_a_resized_mask_holds_classes_of_the_place_unmixed(op: Op) -> None:
    for index in range(20):
        made = rows_of([op, RandomHorizontalFlip()], sample(), index)
        assert set(np.unique(made["mask"])) <= set(np.unique(places()))
        # The image was interpolated: where its neighbourhood is one block, it is that block's number.
        near = np.abs(made["image"][:, :, 0].astype(int) - made["mask"]) <= 1
        assert near.mean() > 0.4


def test_a_resize_takes_the_pixel_that_torch_takes() -> None:
    import torch

    mask = places()
    for size in ((20, 28), (64, 31), (3, 200)):
        wanted = torch.nn.functional.interpolate(torch.from_numpy(mask)[None, None], size, mode="nearest")[0, 0]
        assert (rows_of([Resize(size)], sample(mask))["mask"] == wanted.numpy()).all()


def test_ops_on_values_leave_masks_alone() -> None:
    ops = [CenterCrop(24), ColorJitter(0.5, 0.5, 0.5, 0.2), Grayscale(), ToDtype("float32", scale=True)]
    made = rows_of([*ops, Normalize([0.5], [0.2]), ToLayout("CHW")], sample())
    assert made["image"].dtype == np.float32
    assert made["image"].shape == (1, 24, 24)
    assert (made["mask"] == places()[8:32, 16:40]).all()


def test_every_view_has_a_mask_of_its_own_that_fits_its_image() -> None:
    for index in range(10):
        made = rows_of([RandomCrop(16), RandomHorizontalFlip()], sample(), index, views=3)
        for view in ("", "_1", "_2"):
            assert (made[f"image{view}"] == made[f"mask{view}"][:, :, None]).all()
        assert len({made[f"mask{view}"].tobytes() for view in ("", "_1", "_2")}) > 1


@given(st.integers(0, 10**6), st.integers(1, 6), st.lists(st.sampled_from(sorted(MOVES)), min_size=2, max_size=4))
@settings(deadline=None, max_examples=40)
def test_rows_of_a_mask_do_not_depend_on_who_shares_the_decode(index: int, seed: int, names: list[str]) -> None:
    record = sample(np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH), np.uint8))
    pipelines = [Pipeline.from_ops(MOVES[name], 1, COLUMNS) for name in names]
    shared = [[np.zeros(f.shape, f.dtype) for f in pipeline.fields if f.shape] for pipeline in pipelines]
    targets = [(row_makers(pipeline)[0], outs) for pipeline, outs in zip(pipelines, shared, strict=True)]
    make_rows(record, SampleKey(3, 0, index), targets)
    for name, outs in zip(names, shared, strict=True):
        alone = rows_of(MOVES[name], record, index)
        assert (outs[0] == alone["image"]).all()
        assert (outs[1] == alone["mask"]).all()


def test_a_turned_photo_has_a_mask_of_its_upright_size() -> None:
    turned = np.repeat(places()[:, :, None], 3, axis=2)
    exif = Picture.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Picture.fromarray(np.rot90(turned)).save(buffer, "PNG", exif=exif)  # turned right by 90 degrees, it is upright
    record = {"image": buffer.getvalue(), "mask": png(places()), "label": 0}
    for index in range(5):
        made = rows_of([RandomCrop(20)], record, index)
        assert (made["image"] == made["mask"][:, :, None]).all()


def test_a_palette_says_classes_and_its_colours_nothing() -> None:
    picture = Picture.fromarray(places()).convert("P")
    picture.putpalette([255 - n % 256 for n in range(768)])
    picture.putdata(places().flatten().tolist())
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    made = rows_of([CenterCrop((HEIGHT, WIDTH))], {**sample(), "mask": buffer.getvalue()})
    assert (made["mask"] == places()).all()


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (b"no image", "mask: not an image"),
        (png(places())[:60], "mask: "),
        (png(places(8, 8)), r"mask: made for 8 x 8 pixels \(width x height\), but the image, upright, has 56 x 40"),
        (
            png(np.zeros((HEIGHT, WIDTH, 3), np.uint8)),
            "mask: it must have one number of 8 bits .* this is RGB$",
        ),
        (png(places().astype(np.uint16)), r'this is I;16: declare dtype="uint16"$'),
        (b"", "mask: empty file"),
    ],
)
def test_a_mask_that_cannot_be_is_a_bad_sample_that_says_why(mask: bytes, said: str) -> None:
    with pytest.raises(BadSample, match=said):
        rows_of([CenterCrop(8)], {**sample(), "mask": mask})


def test_a_mask_that_has_not_its_declared_size_is_bad() -> None:
    with pytest.raises(BadSample, match=r"mask: has \(40, 56\) pixels \(height, width\), and rows of \(20, 30\)"):
        rows_of([], {"mask": png(places()), "label": 1}, columns={"mask": Mask((20, 30)), "label": Label()})


@pytest.mark.parametrize(
    ("fill", "mask_fill", "wanted"),
    [
        (255, None, 255), ((1, 2, 3), None, 0), (300, None, 0), (-1, None, 0), (0.5, None, 0),
        (255, 0, 0), ((1, 2, 3), 9, 9), (0.5, 255, 255),
    ],
)  # fmt: skip
def test_padding_is_a_class_or_nothing(fill: Any, mask_fill: int | None, wanted: int) -> None:
    floats = [] if fill in (255, (1, 2, 3)) else [ToDtype("float32")]
    made = rows_of([*floats, Pad(2, fill=fill, mask_fill=mask_fill), CenterCrop((HEIGHT + 4, WIDTH + 4))], sample())
    assert (made["mask"][:2] == wanted).all()
    assert (made["mask"][2:-2, 2:-2] == places()).all()


@pytest.mark.parametrize(
    "op", [RandomCrop(60, pad_if_needed=True, mask_fill=65535), RandomRotation((45, 45), mask_fill=65535)]
)
def test_padding_of_a_mask_of_16_bits_is_any_class(op: Op) -> None:
    columns: Columns = {**COLUMNS, "mask": Mask(dtype="uint16")}
    given = {**sample(), "mask": png(places() + np.uint16(300))}
    made = set(rows_of([op, CenterCrop((40, 44))], given, columns=columns)["mask"].flat)
    assert made - set((places() + np.uint16(300)).flat) == {65535}
    with pytest.raises(SpecError, match=r'mask_fill = 65535: is above 255, and .*dtype="uint16"'):
        Pipeline.from_ops([RandomApply([op]), CenterCrop(8)], columns=COLUMNS)


FILLING: dict[type[Op], dict[str, Any]] = {
    AutoAugment: {}, CenterCrop: {"size": 20}, ElasticTransform: {"alpha": 300}, Mosaic: {"size": 16, "fill": 0},
    Pad: {"padding": 2}, RandAugment: {"num_ops": 1, "magnitude": 20}, RandomAffine: {"degrees": 90},
    RandomCrop: {"size": 20, "pad_if_needed": True}, RandomPerspective: {"p": 1}, RandomRotation: {"degrees": 90},
    RandomZoomOut: {"side_range": (2, 2), "p": 1}, TrivialAugmentWide: {},
}  # fmt: skip


@pytest.mark.parametrize("kind", [op for op in OPS.values() if "mask_fill" in inspect.signature(op).parameters])
def test_what_no_image_covers_is_a_class_of_its_own(kind: type[Op]) -> None:
    stream = Scenes([scene(number, 16, 16) for number in range(12)]).stream()
    columns: Columns = {"image": Image(), "classes": Mask(), "label": Label()}

    def made(nested: bool, **given: Any) -> dict[str, Any]:
        op = kind(**FILLING[kind], **given)
        ops = [CenterCrop(16), RandomApply([op], p=1) if nested else op, *[CenterCrop(32)] * (kind is RandomZoomOut)]
        return scenes_of(stream, Pipeline.from_ops(ops, columns=columns), 24)[0]

    for nested in {False, issubclass(kind, WarpOp)}:
        plain, filled = made(nested), made(nested, mask_fill=255)
        outside = plain["classes"] == 0  # a class that no scene has
        assert outside.any()
        assert (filled["classes"] == np.where(outside, 255, plain["classes"])).all()
        assert (filled["image"] == plain["image"]).all()
        assert kind is AutoAugment or not filled["image"][outside].any()  # which may change values after a move


def test_every_op_that_fills_what_it_uncovers_can_fill_masks() -> None:
    fills = {op for op in OPS.values() if op.moves and "fill" in inspect.signature(op).parameters}
    assert {*FILLING} == fills | {CenterCrop}


@pytest.mark.parametrize("kept", [0.5, 0.9])
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_a_damaged_mask_is_bad_for_every_lane_in_any_order(kind: str, kept: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH), np.uint8)
    buffer = io.BytesIO()
    Picture.fromarray(noise).save(buffer, kind)
    whole = buffer.getvalue()
    record = {**sample(noise), "mask": whole[: int(len(whole) * kept)]}
    pipelines = [Pipeline.from_ops([CenterCrop(side)], 1, COLUMNS) for side in (4, 8, 16)]
    outs = [[np.zeros(f.shape, f.dtype) for f in pipeline.fields if f.shape] for pipeline in pipelines]
    targets = [(row_makers(pipeline)[0], out) for pipeline, out in zip(pipelines, outs, strict=True)]
    with pytest.raises(BadSample) as bad:
        make_rows(record, SampleKey(0, 0, 0), targets)
    assert sorted(bad.value.failures) == [0, 1, 2]
    assert len(set(bad.value.failures.values())) == 1


def test_only_limits_an_op_on_values_to_one_column() -> None:
    columns = {"left": Image(), "right": Image()}
    pipeline = Pipeline.from_ops([CenterCrop(8), Only("left", Grayscale(1))], 1, columns)
    assert [(f.name, f.shape) for f in pipeline.fields][:2] == [("left", (8, 8, 1)), ("right", (8, 8, 3))]
    assert Pipeline.from_wire(pipeline.to_wire(), columns) == pipeline
    image = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    left, right = np.zeros((8, 8, 1), np.uint8), np.zeros((8, 8, 3), np.uint8)
    make_rows({"left": png(image), "right": png(image)}, SampleKey(0, 0, 0), [(row_makers(pipeline)[0], [left, right])])
    assert (right == image[16:24, 24:32]).all()
    assert not (left == right).all()


def test_pairs_of_images_move_together() -> None:
    columns = {"left": Image(), "right": Image()}
    pipeline = Pipeline.from_ops([RandomResizedCrop(16), RandomHorizontalFlip()], 1, columns)
    image = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    for index in range(5):
        outs = [np.zeros((16, 16, 3), np.uint8) for _ in range(2)]
        record = {"left": png(image), "right": png(image)}
        make_rows(record, SampleKey(0, 0, index), [(row_makers(pipeline)[0], outs)])
        assert (outs[0] == outs[1]).all()
    record = {"left": png(image), "right": png(image[:8, :8])}
    said = r"another image has 8 x 8 pixels \(.*, has 56 x 40. To move each by itself, declare .* Only\('right', Resize"
    with pytest.raises(BadSample, match=said):
        make_rows(record, SampleKey(0, 0, 0), [(row_makers(pipeline)[0], outs)])


@pytest.mark.parametrize(
    ("op", "said"),
    [
        (lambda: Only("image", Only("image", Grayscale())), "must be an op"),
        (lambda: Pipeline.from_ops([CenterCrop(8), Only("picture", Grayscale())]), "is no column here"),
    ],
)
def test_only_says_what_it_cannot_do(op: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        op()
