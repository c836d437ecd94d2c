"""Boxes and keypoints go where their image goes, by torchvision's arithmetic; labels go with their boxes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Picture

from prepserver.pipeline.affine import affine
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import BoxCount, Boxes, Image, Keypoints, Kind, Label, PerBox
from prepserver.pipeline.ops import (
    CenterCrop,
    ClampBoxes,
    ColorJitter,
    ConvertBoxes,
    Decode,
    Normalize,
    Only,
    Op,
    Pad,
    PadBoxes,
    PadKeypoints,
    PluginOp,
    RandomAffine,
    RandomApply,
    RandomCrop,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    RandomZoomOut,
    Resize,
    SanitizeBoxes,
    ToDtype,
    ToLayout,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.transform import BadSample, SampleKey, make_rows, row_makers
from prepserver.transform.kinds.boxes import BoxesFollower
from prepserver.transform.moves import COLUMNS, Cut, Mirror, Scale, Warp
from prepserver.transform.warp import perspective
from tests.support.oracle import torchvision

Floats = npt.NDArray[np.float32]
COLUMNS_OF: dict[str, Kind] = {
    "image": Image(),
    "boxes": Boxes(),
    "labels": PerBox(),
    "iscrowd": PerBox(),
    "keypoints": Keypoints(each=2, pairs=((0, 1),)),
}
HEIGHT, WIDTH = 60, 84


def boxes_of(seed: int, count: int = 6) -> Floats:
    """Boxes inside, over the edge, outside, without width, without height."""
    rng = np.random.default_rng(seed)
    near = rng.uniform(-10, 70, (count, 2))
    return np.concatenate((near, near + rng.choice([0.0, 0.5, 9.25, 40.0], (count, 2))), 1).astype(np.float32)


def sample(boxes: Any, size: tuple[int, int] | None = (HEIGHT, WIDTH), **more: Any) -> dict[str, Any]:
    boxes = np.asarray(boxes, np.float32).reshape(-1, 4)
    count = len(boxes)
    middle = np.concatenate(((boxes[:, :2] + boxes[:, 2:]) / 2, np.full((count, 1), 2, np.float32)), 1)
    first = np.concatenate((boxes[:, :2], np.full((count, 1), 1, np.float32)), 1)
    record = {
        "image": bytes(simplejpeg.encode_jpeg(np.zeros((*(size or (HEIGHT, WIDTH)), 3), np.uint8))),
        "boxes": boxes if size is None else (boxes, size),
        "labels": np.arange(10, 10 + count),
        "iscrowd": np.arange(count) % 2,
        "keypoints": np.stack((first, middle), 1),
    }
    return record | more


def rows_of(
    ops: Sequence[Op], record: dict[str, Any], index: int = 0, views: int = 1, columns: dict[str, Kind] = COLUMNS_OF
) -> dict[str, Any]:
    pipeline = Pipeline.from_ops(list(ops), views, columns)
    makers = row_makers(pipeline)
    made = {f.name: np.full(f.shape, 77, f.dtype) for f in pipeline.fields}  # a ring's rows hold old values
    make_rows(record, SampleKey(3, 0, index), [(maker, [made[f.name] for f in maker.fields]) for maker in makers])
    return made


MOVES: dict[str, list[Op]] = {
    "centre crop": [CenterCrop(24)],
    "centre crop of the same size": [CenterCrop((HEIGHT, WIDTH))],
    "centre crop beyond the image": [CenterCrop((90, 100))],
    "random crop": [RandomCrop(17)],
    "padded random crop": [RandomCrop(50, padding=(3, 9), fill=9)],
    "padded": [Pad((5, 3, 1, 2))],
    "zoomed out": [RandomZoomOut(fill=7)],
    "smaller": [Resize((30, 31))],
    "letterboxed": [Resize(None, max_size=51), CenterCrop(64)],
    "larger": [Resize((128, 99)), RandomVerticalFlip(1.0)],
    "resized crop": [RandomResizedCrop(64)],
    "small resized crop": [RandomResizedCrop((8, 12)), RandomHorizontalFlip()],
    "crop, flip, resize, pad, flip": [
        RandomCrop(40), RandomHorizontalFlip(), Resize((77, 50)), Pad(4), RandomVerticalFlip(),
    ],
}  # fmt: skip


def as_torchvision(record: dict[str, Any], moves: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor, tuple[int, int]]:
    """Boxes and keypoints (without visibility) after the same moves by torchvision's own functions."""
    v2, tv = torchvision("transforms.v2.functional"), torchvision("tv_tensors")
    boxes, size = record["boxes"]
    found = tv.BoundingBoxes(torch.from_numpy(boxes), format="XYXY", canvas_size=size)
    points = tv.KeyPoints(torch.from_numpy(record["keypoints"][..., :2].copy()), canvas_size=size)
    for move in moves:
        match move:
            case Cut(top, left, height, width):
                found, points = (v2.crop(each, top, left, height, width) for each in (found, points))
            case Scale(height, width):
                found, points = (v2.resize(each, [height, width]) for each in (found, points))
            case Mirror(axis):
                flip = v2.horizontal_flip if axis == COLUMNS else v2.vertical_flip
                found, points = flip(found), flip(points)
    return found, points, tuple(found.canvas_size)


@pytest.mark.parametrize("name", MOVES)
def test_boxes_move_by_the_bits_of_torchvision(name: str) -> None:
    for index in range(12):
        record = sample(boxes_of(index))
        pipeline = Pipeline.from_ops([*MOVES[name], CenterCrop(32), PadBoxes(6)], 1, COLUMNS_OF)
        plan = row_makers(pipeline)[0].plan(HEIGHT, WIDTH, SampleKey(3, 0, index))
        made = rows_of(pipeline.ops, record, index)
        wanted, points, (height, width) = as_torchvision(record, [m for m in plan.moves if not callable(m)])
        assert made["boxes"].tobytes() == wanted.numpy().tobytes()
        assert made["labels"].tolist() == list(range(10, 16))
        assert made["count"] == 6
        # Places of a pair change once for each horizontal flip; those that are not visible are 0.
        if sum(m == Mirror(COLUMNS) for m in plan.moves) % 2:
            points = points[:, [1, 0]]
        visible = made["keypoints"][..., 2] > 0
        assert np.array_equal(made["keypoints"][..., :2][visible], points.numpy()[visible])
        assert (made["keypoints"][~visible] == 0).all()
        x, y = points.numpy()[..., 0], points.numpy()[..., 1]
        assert not visible[(x < 0) | (x >= width) | (y < 0) | (y >= height)].any()


@pytest.mark.parametrize("way", ["turned", "sheared", "moved", "expanded", "perspective"])
def test_boxes_follow_a_matrix_as_by_torchvision(way: str) -> None:
    v2, tv = torchvision("transforms.v2.functional"), torchvision("tv_tensors")
    full, size = (HEIGHT, WIDTH), (HEIGHT, WIDTH)
    changes: dict[str, dict[str, Any]] = {
        "turned": {"angle": 30.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]},
        "sheared": {"angle": -10.0, "translate": [3, -4], "scale": 1.3, "shear": [10.0, 5.0]},
        "moved": {"angle": 0.0, "translate": [13, -7], "scale": 0.5, "shear": [0.0, 0.0]},
    }
    for index in range(5):
        record = sample(boxes_of(index))
        found = tv.BoundingBoxes(torch.from_numpy(record["boxes"][0]), format="XYXY", canvas_size=full)
        points = tv.KeyPoints(torch.from_numpy(record["keypoints"][..., :2].copy()), canvas_size=full)
        if way in changes:
            found, points = (v2.affine(each, **changes[way]) for each in (found, points))
            given = changes[way]
            matrix = affine(full, given["angle"], tuple(given["translate"]), given["scale"], tuple(given["shear"]))
        elif way == "expanded":
            found, points = (v2.rotate(each, 90.0, expand=True) for each in (found, points))
            size = (WIDTH, HEIGHT)
            matrix = affine(full, -90.0, size=size)
        else:
            start = [[0, 0], [WIDTH - 1, 0], [WIDTH - 1, HEIGHT - 1], [0, HEIGHT - 1]]
            end = [[5, 3], [70, 8], [80, 55], [2, 50]]
            found, points = (v2.perspective(each, start, end) for each in (found, points))
            matrix = perspective(full, [(x, y) for x, y in end]) or ()
        objects = BoxesFollower({name: record[name] for name in COLUMNS_OF if name != "image"}, COLUMNS_OF).objects(
            full
        )
        moved = objects.after([Warp(matrix, *size)])
        assert moved.size == tuple(found.canvas_size)
        tolerance = 1.5 if way == "perspective" else 0.01  # torchvision's corners are at the middles of pixels there
        assert np.abs(moved.boxes - found.numpy()).max() < tolerance
        visible = moved.points["keypoints"][..., 2] > 0
        if visible.any():
            away = moved.points["keypoints"][..., :2][visible] - points.numpy()[visible]
            assert np.abs(away).max() < tolerance


@pytest.mark.parametrize("least", [(1.0, 1.0), (3.5, 20.0)])
def test_boxes_are_sanitized_and_clamped_as_by_torchvision(least: tuple[float, float]) -> None:
    v2 = torchvision("transforms.v2.functional")
    form = torchvision("tv_tensors").BoundingBoxFormat.XYXY
    for seed in range(20):
        boxes = boxes_of(seed, 30)
        given = torch.from_numpy(boxes)
        size = (HEIGHT, WIDTH)
        for clamp in (False, True):
            there = v2.clamp_bounding_boxes(given, form, size, clamping_mode="soft") if clamp else given
            wanted, kept = v2.sanitize_bounding_boxes(there, form, size, *least)
            ops = [*([ClampBoxes()] if clamp else []), SanitizeBoxes(*least), PadBoxes(30), Resize(size)]
            made = rows_of(ops, sample(boxes))
            count = int(made["count"])
            assert np.array_equal(made["boxes"][:count], wanted.numpy())
            assert made["labels"][:count].tolist() == (10 + np.flatnonzero(kept.numpy())).tolist()
            assert made["iscrowd"][:count].tolist() == (np.flatnonzero(kept.numpy()) % 2).tolist()


@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
def test_boxes_are_converted_as_by_torchvision(form: str) -> None:
    v2 = torchvision("transforms.v2.functional")
    boxes = boxes_of(5)
    wanted = v2.convert_bounding_box_format(torch.from_numpy(boxes), "XYXY", form.upper()).numpy()
    size = Resize((HEIGHT, WIDTH))
    assert np.allclose(rows_of([size, ConvertBoxes(form), PadBoxes(6)], sample(boxes))["boxes"], wanted, atol=1e-5)
    made = rows_of([size, PadBoxes(6), ConvertBoxes(form, normalize=True)], sample(boxes))
    assert np.allclose(made["boxes"], wanted / [WIDTH, HEIGHT, WIDTH, HEIGHT], atol=1e-6)


def test_a_part_shows_enough_of_a_box_as_by_torchvision() -> None:
    """Each part keeps torchvision's conditions, and the boxes after it are those of torchvision's crop."""
    v2 = torchvision("transforms.v2.functional")
    iou, form = torchvision("ops").box_iou, torchvision("tv_tensors").BoundingBoxFormat.XYXY
    cropped, whole = 0, 0
    for index in range(60):
        record = sample(boxes_of(index, 5))
        ops = [Resize((HEIGHT, WIDTH)), RandomIoUCrop(sampler_options=[0.15, 1.0]), Resize((90, 70)), PadBoxes(5)]
        pipeline = Pipeline.from_ops(ops, 1, COLUMNS_OF)
        made = rows_of(ops, record, index)
        given = torch.from_numpy(record["boxes"][0])
        maker = row_makers(pipeline)[0]
        objects = BoxesFollower({name: record[name] for name in COLUMNS_OF if name != "image"}, COLUMNS_OF).objects(
            (HEIGHT, WIDTH)
        )
        moves = maker.plan(HEIGHT, WIDTH, SampleKey(3, 0, index), objects).moves
        cuts = [move for move in moves if isinstance(move, Cut)]
        if not cuts:
            whole += 1
            wanted = given
        else:
            cropped += 1
            (top, left, height, width, *_) = cuts[0]
            assert 0.3 * HEIGHT - 1 <= height <= HEIGHT
            assert 0.3 * WIDTH - 1 <= width <= WIDTH
            assert 0.5 <= width / height <= 2
            middle = (given[:, :2] + given[:, 2:]) / 2
            within = ((middle > torch.tensor([left, top])) & (middle < torch.tensor([left + width, top + height]))).all(
                1
            )
            part = torch.tensor([[left, top, left + width, top + height]], dtype=torch.float32)
            assert iou(given[within], part).max() >= 0.15
            wanted, _ = v2.crop_bounding_boxes(given, form, top, left, height, width)
            wanted[~within] = 0
        resized, _ = v2.resize_bounding_boxes(wanted, (height, width) if cuts else (HEIGHT, WIDTH), [90, 70])
        assert np.array_equal(made["boxes"], resized.numpy())
    assert cropped > 10
    assert whole > 15


def test_where_no_part_shows_a_box_the_image_stays() -> None:
    nowhere = [[-9, -9, -5, -5]]
    for boxes in ([], nowhere):
        for index in range(3):
            made = rows_of(
                [RandomIoUCrop(sampler_options=[0.9], trials=1), CenterCrop((HEIGHT, WIDTH)), PadBoxes(1)],
                sample(boxes, image=bytes(simplejpeg.encode_jpeg(places()))),
                index,
            )
            assert np.abs(made["image"].astype(int) - places()).mean() < 8
            assert made["count"] == len(boxes)


def test_parts_that_show_a_box_fit_what_is_seen() -> None:
    box = (20, 15, 60, 45)
    record = {
        "image": bytes(simplejpeg.encode_jpeg(bright(box, HEIGHT, WIDTH), quality=95)),
        "boxes": (np.array([box], np.float32), (HEIGHT, WIDTH)),
    }
    columns: dict[str, Kind] = {"image": Image(), "boxes": Boxes()}
    ops = [RandomZoomOut(), RandomIoUCrop(), RandomHorizontalFlip(), Resize((120, 160)), SanitizeBoxes(), PadBoxes(1)]
    for index in range(20):
        made = rows_of(ops, record, index, columns=columns)
        assert made["count"] == 1
        assert np.abs(made["boxes"][0] - seen(made["image"])).max() <= 3


@pytest.mark.parametrize("op", [RandomRotation(40), RandomRotation(30, expand=True), RandomAffine(20, (0.1, 0.1))])
def test_a_box_around_what_turns_fits_what_is_seen(op: Op) -> None:
    box = (30, 22, 55, 40)
    record = {
        "image": bytes(simplejpeg.encode_jpeg(bright(box, HEIGHT, WIDTH), quality=95)),
        "boxes": (np.array([box], np.float32), (HEIGHT, WIDTH)),
    }
    columns: dict[str, Kind] = {"image": Image(), "boxes": Boxes()}
    for index in range(10):
        made = rows_of([op, CenterCrop(80), PadBoxes(1)], record, index, columns=columns)
        assert np.abs(made["boxes"][0] - seen(made["image"])).max() <= 2


def places() -> npt.NDArray[np.uint8]:
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    return np.ascontiguousarray(np.stack((rows * 3, columns * 3, rows + columns), 2).astype(np.uint8))


def bright(box: tuple[int, int, int, int], height: int, width: int) -> npt.NDArray[np.uint8]:
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[box[1] : box[3], box[0] : box[2]] = 255
    return pixels


def seen(image: npt.NDArray[np.uint8]) -> list[float]:
    """Where an image is bright."""
    rows, columns = (np.flatnonzero((image[:, :, 0] > 127).any(axis)) for axis in (1, 0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


@pytest.mark.parametrize("quarter", [1, 2, 4])
def test_boxes_fit_what_is_seen_in_photos_of_any_scale(quarter: int) -> None:
    """Large photos are decoded at a half or a quarter, which moves the crop by some pixels, and the box with it."""
    height, width = 240 * quarter, 320 * quarter
    box = (60 * quarter, 40 * quarter, 250 * quarter, 200 * quarter)
    jpeg = bytes(simplejpeg.encode_jpeg(bright(box, height, width), quality=95))
    columns: dict[str, Kind] = {"image": Image(), "boxes": Boxes()}
    record = {"image": jpeg, "boxes": (np.array([box], np.float32), (height, width))}
    ops = [RandomResizedCrop(120, scale=(0.5, 1.0)), RandomHorizontalFlip(), RandomVerticalFlip(), PadBoxes(1)]
    for index in range(10):
        made = rows_of(ops, record, index, columns=columns)
        assert np.abs(made["boxes"][0] - seen(made["image"])).max() <= 1.5


def test_boxes_lie_on_the_upright_photo() -> None:
    """As masks do; boxes on another plane than the photo's make a bad sample, which says how large both are."""
    box, exif = (8, 16, 48, 32), Picture.Exif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    Picture.fromarray(np.rot90(bright(box, HEIGHT, WIDTH))).save(buffer, "PNG", exif=exif)
    columns: dict[str, Kind] = {"image": Image(), "boxes": Boxes()}
    record = {"image": buffer.getvalue(), "boxes": (np.array([box], np.float32), (HEIGHT, WIDTH))}
    for index in range(5):
        made = rows_of([RandomCrop(50), PadBoxes(1)], record, index, columns=columns)
        assert made["boxes"][0].tolist() == seen(made["image"])
    with pytest.raises(
        BadSample, match=r"boxes: made for 84 x 60 pixels \(width x height\), but the image, upright, has 60 x 84"
    ):
        rows_of([Decode(exif_orientation=False), RandomCrop(50), PadBoxes(1)], record, columns=columns)


def test_what_is_beyond_n_is_left_out_by_order_or_by_size() -> None:
    boxes = [[0, 0, 1, 1], [0, 0, 20, 20], [0, 0, 30, 3], [0, 0, 10, 10]]
    size = Resize((HEIGHT, WIDTH))
    first = rows_of([size, PadBoxes(2)], sample(boxes))
    assert first["labels"].tolist() == [10, 11]
    assert first["boxes"].tolist() == boxes[:2]
    assert first["count"] == 2
    for ops in ([PadBoxes(2, keep="largest")], [ConvertBoxes("xywh"), PadBoxes(2, keep="largest")]):
        largest = rows_of([size, *ops], sample(boxes))
        assert largest["labels"].tolist() == [11, 13]
        assert largest["keypoints"].shape == (2, 2, 3)
    room = rows_of([size, PadBoxes(6)], sample(boxes))
    assert room["count"] == 4
    assert room["labels"].tolist() == [10, 11, 12, 13, -1, -1]
    assert room["iscrowd"].tolist() == [0, 1, 0, 1, -1, -1]
    assert not room["boxes"][4:].any()
    assert not room["keypoints"][4:].any()


def test_an_image_without_boxes_is_a_row_of_none() -> None:
    made = rows_of([RandomResizedCrop(16), RandomHorizontalFlip(), SanitizeBoxes(), PadBoxes(3)], sample([]))
    assert made["count"] == 0
    assert not made["boxes"].any()
    assert made["labels"].tolist() == [-1, -1, -1]


def test_each_view_has_boxes_and_labels_of_its_own() -> None:
    ops = [RandomCrop(30), SanitizeBoxes(min_size=4), PadBoxes(30)]
    made = rows_of(ops, sample(boxes_of(1, 30)), views=3)
    for view in ("", "_1", "_2"):
        count = int(made[f"count{view}"])
        assert (made[f"labels{view}"][:count] >= 10).all()
        assert (made[f"labels{view}"][count:] == -1).all()
    assert len({made[f"labels{view}"].tobytes() for view in ("", "_1", "_2")}) == 3
    assert made["boxes"].tobytes() == rows_of(ops, sample(boxes_of(1, 30)))["boxes"].tobytes()


@given(st.integers(0, 10**6), st.lists(st.sampled_from(sorted(MOVES)), min_size=2, max_size=4))
@settings(deadline=None, max_examples=20)
def test_boxes_do_not_depend_on_who_shares_the_decode(index: int, names: list[str]) -> None:
    record = sample(boxes_of(index))
    ops = [[*MOVES[name], CenterCrop(20), SanitizeBoxes(), PadBoxes(3 + at)] for at, name in enumerate(names)]
    pipelines = [Pipeline.from_ops(each, 1, COLUMNS_OF) for each in ops]
    makers = [row_makers(pipeline)[0] for pipeline in pipelines]
    shared = [[np.full(f.shape, 5, f.dtype) for f in maker.fields] for maker in makers]
    make_rows(record, SampleKey(3, 0, index), list(zip(makers, shared, strict=True)))
    for maker, outs, each in zip(makers, shared, ops, strict=True):
        alone = rows_of(each, record, index)
        assert all((alone[f.name] == out).all() for f, out in zip(maker.fields, outs, strict=True))


def test_points_without_boxes_move_alone() -> None:
    columns: dict[str, Kind] = {"image": Image(), "face": Keypoints()}
    points = np.array([[10, 20, 2], [80, 50, 1], [3, 3, 0]], np.float32)
    record = {"image": sample([])["image"], "face": points}
    made = rows_of([RandomHorizontalFlip(1.0), CenterCrop(40), PadKeypoints(4)], record, columns=columns)
    assert not made["face"].any()
    for value in (points, (points, (HEIGHT, WIDTH))):
        ops = [RandomHorizontalFlip(1.0), Resize((30, 42)), PadKeypoints(2)]
        made = rows_of(ops, record | {"face": value}, columns=columns)
        assert made["face"].tolist() == [[(WIDTH - 1 - 10) / 2, 10, 2], [1.5, 25, 1]]
    with pytest.raises(SpecError, match=r"add PadKeypoints\(n\)"):
        Pipeline.from_ops([CenterCrop(9)], 1, columns)
    assert Pipeline.from_ops([CenterCrop(9)], 1, columns | {"face": Keypoints(count=3)}).fields[1].shape == (3, 3)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"boxes": np.array([[0, 0, np.nan, 1]], np.float32)}, "boxes: has a number that is not finite"),
        ({"boxes": np.array([[0, 0, np.inf, 1]], np.float32)}, "boxes: has a number that is not finite"),
        ({"boxes": np.zeros((1, 5), np.float32)}, r"boxes: is of shape \(1, 5\); must be .* \(n, 4\)"),
        ({"boxes": np.array([[5, 0, 4, 1]], np.float32)}, "boxes: a box ends before it begins"),
        ({"labels": np.array([1, 2])}, "boxes: 1 boxes and 2 labels"),
        ({"keypoints": np.zeros((1, 3, 3), np.float32)}, r"boxes: is of shape \(1, 3, 3\)"),
        ({"boxes": (np.zeros((1, 4), np.float32), (5, 5))}, r"boxes: made for 5 x 5 pixels"),
    ],
)
def test_boxes_that_cannot_be_make_a_bad_sample(more: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSample, match=said):
        rows_of([CenterCrop(9), PadBoxes(3)], sample([[0, 0, 1, 1]]) | more)


@pytest.mark.parametrize(
    ("ops", "said"),
    [
        ([CenterCrop(9)], r"add PadBoxes\(n\)"),
        ([CenterCrop(9), PadBoxes(3), PadBoxes(3)], "there is a column count already"),
        ([CenterCrop(9), ConvertBoxes("xywh"), CenterCrop(8), PadBoxes(3)], r"\[2\].op = 'CenterCrop': cannot follow"),
        ([CenterCrop(9), ConvertBoxes("xywh"), SanitizeBoxes(), PadBoxes(3)], "cannot follow ConvertBoxes"),
        ([CenterCrop(9), PadKeypoints(3), PadBoxes(3)], "needs keypoints without boxes"),
        ([CenterCrop(9), PadBoxes(3), PluginOp("f", column="labels")], "which follows its image"),
    ],
)
def test_a_pipeline_that_cannot_be_names_the_way_out(ops: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        Pipeline.from_ops(ops, 1, COLUMNS_OF)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: PadBoxes(0), "between 1 and 10000"),
        (lambda: PadKeypoints(10_001), "between 1 and 10000"),
        (lambda: PadBoxes(3, keep="last"), "'first' or 'largest'"),
        (lambda: SanitizeBoxes(min_size=0.5), "min_size = 0.5: must be at least 1"),
        (lambda: ConvertBoxes("xxyy"), "'xyxy' or 'xywh' or 'cxcywh'"),
        (lambda: Only("boxes", SanitizeBoxes()), "names no column by itself"),
        (lambda: RandomApply([PadBoxes(3)]), "names no column by itself"),
        (lambda: RandomIoUCrop(min_scale=0.5, max_scale=0.4), "must not be below min_scale"),
        (lambda: RandomIoUCrop(sampler_options=[]), "1 to 32 values"),
        (lambda: RandomIoUCrop(min_aspect_ratio=3), "must not be below min_aspect_ratio"),
        (lambda: RandomZoomOut(side_range=(0.5, 2)), "between 1 and 16"),
    ],
)
def test_parameters_that_cannot_be_are_refused(make: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        make()


def test_ops_on_boxes_need_boxes_and_only_one_column() -> None:
    with pytest.raises(SpecError, match="needs boxes; a sample has image, label, index"):
        Pipeline.from_ops([CenterCrop(9), SanitizeBoxes()])
    for columns in ({"a": Boxes(), "b": Boxes()}, {"labels": PerBox()}, {"count": Label(), "a": Boxes()}):
        with pytest.raises(SpecError, match=r"one column of boxes|a column count already"):
            Pipeline.from_ops([CenterCrop(9), PadBoxes(3)], 1, {"image": Image(), **columns})


def test_ops_on_values_leave_boxes_alone() -> None:
    ops = [CenterCrop((HEIGHT, WIDTH)), PadBoxes(1), ColorJitter(0.5), ToDtype("float32", scale=True)]
    made = rows_of([*ops, Normalize([0.5], [0.2]), ToLayout("CHW")], sample([[1, 2, 3, 4]]))
    assert made["boxes"].tolist() == [[1, 2, 3, 4]]
    fields = Pipeline.from_ops(ops, 1, COLUMNS_OF).fields
    assert [(f.name, f.shape) for f in fields][1:] == [
        ("boxes", (1, 4)), ("labels", (1,)), ("iscrowd", (1,)), ("keypoints", (1, 2, 3)), ("index", ()), ("count", ()),
    ]  # fmt: skip
    assert isinstance(fields[-1].kind, BoxCount)
