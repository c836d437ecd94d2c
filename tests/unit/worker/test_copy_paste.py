"""`CopyPaste`: objects of another sample on this one, as torchvision's reference script pastes binary masks."""

from __future__ import annotations

from typing import Any

import numpy as np

from prepserver.pipeline.kinds import Boxes, Image, Keypoints, Kind, Mask, PerBox
from prepserver.pipeline.ops import (
    CopyPaste,
    Op,
    PadBoxes,
    PadKeypoints,
    RandomCrop,
    RandomHorizontalFlip,
    Resize,
    SanitizeBoxes,
    ScaleJitter,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.source import Record
from prepserver.transform import SampleKey
from prepserver.transform.mixing import mixers
from prepserver.transform.stage import Draws
from tests.support.scenes import SEED, Scenes, encoded, rows_of, same

COLUMNS: dict[str, Kind] = {
    "image": Image(), "mask": Mask(), "classes": Mask(), "boxes": Boxes(), "labels": PerBox(),
    "instances": PerBox(dtype="int16"), "joints": Keypoints(each=1), "points": Keypoints(),
}  # fmt: skip
END: list[Op] = [PadBoxes(12), PadKeypoints(2)]
SIZE = 40, 48


def scene(number: int, objects: int, height: int = SIZE[0], width: int = SIZE[1]) -> Record:
    """Rectangles that hide parts of each other; each has a colour of its own, and a number that is not its place."""
    rng = np.random.default_rng(number)
    mask = np.zeros((height, width), np.uint8)
    boxes, numbers = [], 7 * np.arange(objects) + 3
    for each in numbers:
        top, left = rng.integers(0, height - 8), rng.integers(0, width - 8)
        bottom, right = top + rng.integers(3, 14), left + rng.integers(3, 14)
        mask[top:bottom, left:right] = each
        boxes.append([left, top, right, bottom])
    mask[0, :3] = 255  # void, as PASCAL VOC has it around objects: no box has this number
    image = np.stack([np.full_like(mask, 40 + number), mask, mask // 2], 2)
    middles = [[[(a + c) / 2, (b + d) / 2, 2]] for a, b, c, d in boxes]
    return {
        "image": encoded(image), "mask": encoded(mask), "classes": mask // 7 + 100 * (mask > 0),
        "boxes": (np.array(boxes, np.float32).reshape(-1, 4), (height, width)), "labels": 1000 * number + numbers,
        "instances": numbers.astype(np.int16), "joints": np.array(middles, np.float32).reshape(-1, 1, 3),
        "points": np.array([[number, number, 2]], np.float32),
    }  # fmt: skip


SCENES = [scene(number, number) for number in range(7)]


def pipeline(*ops: Op, views: int = 1) -> Pipeline:
    made = Pipeline.from_ops([*ops, *END], views, COLUMNS)
    assert Pipeline.from_wire(made.to_wire(), COLUMNS) == made
    return made


def test_a_row_is_what_pasting_binary_masks_gives() -> None:
    """The reference: torchvision's simple_copy_paste, whose boxes lack the last pixel."""
    made = pipeline(Resize(SIZE), CopyPaste())
    (mixer,) = mixers(made, 0)
    rows, bad = rows_of(Scenes(SCENES).stream(), made, 3 * len(SCENES))
    assert bad == []
    hidden = 0
    for at, number in enumerate([*range(len(SCENES))] * 3):
        key = SampleKey(SEED, at // len(SCENES), number)
        draws = Draws(key, 2)
        partner = draws.below(len(SCENES))
        assert mixer.parts.mix(len(SCENES), key).partners == (partner,)
        mine, theirs = (np.asarray(SCENES[each]["classes"]) for each in (number, partner))
        (own, own_boxes), (other, other_boxes) = (binary(SCENES[each]) for each in (number, partner))
        there = [place for place, each in enumerate(other) if each.any()]
        chosen = [there[place] for place in sorted({draws.below(len(there)) for _ in there})]
        pasted = np.any([other[place] for place in chosen], 0) if chosen else np.zeros(SIZE, bool)
        wanted = [(number, place, each & ~pasted) for place, each in enumerate(own) if (each & ~pasted).any()]
        wanted += [(partner, place, other[place]) for place in chosen]
        hidden += len(own) + len(chosen) - len(wanted)
        assert rows["count"][at] == len(wanted)
        for k, (whose, place, pixels) in enumerate(wanted):
            assert rows["labels"][at, k] == 1000 * whose + SCENES[whose]["instances"][place]
            assert rows["instances"][at, k] == k + 1
            assert np.array_equal(rows["mask"][at] == k + 1, pixels)
            before = (own if k < len(wanted) - len(chosen) else other)[place]
            boxes = own_boxes if k < len(wanted) - len(chosen) else other_boxes
            ys, xs = np.nonzero(pixels)
            around = [xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]
            assert rows["boxes"][at, k].tolist() == (list(boxes[place]) if (before == pixels).all() else around)
            assert np.array_equal(rows["joints"][at, k], SCENES[whose]["joints"][place])
        assert set(np.unique(rows["mask"][at])) <= set(range(len(wanted) + 1))
        assert np.array_equal(rows["image"][at][..., 0], np.where(pasted, 40 + partner, 40 + number))
        assert np.array_equal(rows["classes"][at], np.where(pasted, theirs, mine))
        assert rows["points"][at].tolist() == [[number, number, 2], [0, 0, 0]]  # of no box: the sample's own
    assert hidden  # all objects of the scenes can be seen before


def binary(record: Record) -> tuple[list[Any], Any]:
    """A mask of bools for each object."""
    image = np.asarray(record["classes"])
    mask = np.where(image > 0, (image - 100) * 7 + 3, 0)
    return [mask == each for each in record["instances"]], record["boxes"][0]


def test_rows_are_functions_of_their_position() -> None:
    ops = [ScaleJitter(SIZE, (0.7, 1.5)), RandomHorizontalFlip(), RandomCrop(32, pad_if_needed=True), CopyPaste()]
    made = pipeline(*ops, RandomCrop(24), SanitizeBoxes(), views=2)
    source = Scenes(SCENES)
    rows, bad = rows_of(source.stream(), made, 14)
    assert bad == []
    assert same(rows, rows_of(source.stream(), made, 1, 6, 2, 5)[0])
    assert rows["image"][:7].tobytes() != rows["image"][7:].tobytes()
    assert rows["image"].tobytes() != rows["image_1"].tobytes()
    for row in range(14):  # what the mask shows is what the box is of, whatever moved them
        for label, number in zip(rows["labels"][row], rows["instances"][row], strict=True):
            if number > 0:
                assert (rows["image"][row][rows["mask"][row] == number][:, 0] == 40 + label // 1000).all()


def test_a_mask_holds_255_objects_and_no_more_are_pasted() -> None:
    many = []
    for number in range(2):
        mask = np.zeros((20, 20), np.uint8)
        mask.ravel()[200 * number : 200 * number + 200] = np.arange(1, 201)
        numbers = np.arange(0, 300, dtype=np.int16)  # 0, and those beyond a mask's, are objects without pixels
        boxes = np.zeros((300, 4), np.float32), (20, 20)
        many.append({
            "image": encoded(np.full((20, 20, 3), number, np.uint8)), "mask": mask, "boxes": boxes,
            "instances": numbers[::-1] if number else numbers,
        })  # fmt: skip
    kinds = {name: COLUMNS[name] for name in many[0]}
    made = Pipeline.from_ops([Resize((20, 20)), CopyPaste(), PadBoxes(400)], 1, kinds)
    rows, bad = rows_of(Scenes(many).stream(), made, 12)
    assert bad == []
    for row in range(12):
        numbers = rows["instances"][row][: rows["count"][row]]
        shown = np.unique(rows["mask"][row])
        assert np.array_equal(np.unique(numbers), shown)
        assert np.array_equal(shown, np.arange(len(shown)))
        assert (numbers == 0).sum() == 100
    assert max(each.max() for each in rows["mask"]) == 255
