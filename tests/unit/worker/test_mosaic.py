"""`Mosaic`: four samples in one row, which is a function of its position like any other."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image, Kind, Label
from prepserver.pipeline.ops import (
    CenterCrop,
    Decode,
    Mosaic,
    Op,
    PadBoxes,
    PadKeypoints,
    PadTokens,
    RandomApply,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomShortestSize,
    Resize,
    SanitizeBoxes,
    ToDtype,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.source.container import BrokenContainerError
from prepserver.transform import DECODING, SampleKey
from prepserver.transform.mixing import mixers
from prepserver.worker.fill import fill
from prepserver.worker.streams import Lane
from tests.support.caches import Cache
from tests.support.scenes import COLUMNS, SEED, Arrays, Scenes, rows_of, same, scene
from tests.support.tiny_images import nothing

SCENES = [scene(number, 30 + 7 * number, 60 - 5 * number) for number in range(6)]
END: list[Op] = [PadBoxes(8), PadKeypoints(8), PadTokens(9)]


def pipeline(*ops: Op, views: int = 1) -> Pipeline:
    made = Pipeline.from_ops([*ops, *END], views, COLUMNS)
    assert Pipeline.from_wire(made.to_wire(), COLUMNS) == made
    return made


def partners(made: Pipeline, index: int, samples: int, view: int = 0) -> tuple[int, ...]:
    """The four samples of a row of the first pass."""
    mixer = mixers(made, 0)[view]
    return index, *mixer.parts.mix(samples, SampleKey(SEED, 0, index)).partners


def test_boxes_and_masks_lie_where_the_four_images_lie() -> None:
    made, source = pipeline(Mosaic((40, 50), fill=(5, 6, 7))), Scenes(SCENES)
    rows, bad = rows_of(source.stream(), made, len(SCENES))
    assert bad == []
    assert rows["image"].shape == (6, 80, 100, 3)
    assert rows["label"].tolist() == rows["index"].tolist() == list(range(6))
    middles = set()
    for row in range(6):
        four = partners(made, row, 6)
        labels = rows["labels"][row].reshape(4, 2)
        assert labels.tolist() == [[number, 100 + number] for number in four]
        assert rows["count"][row] == 8
        covered = np.zeros((80, 100), bool)
        for number, (whole, _part) in zip(four, rows["boxes"][row].reshape(4, 2, 4), strict=True):
            left, top, right, bottom = whole.astype(int)
            assert whole.tolist() == [left, top, right, bottom]
            inside = np.s_[top:bottom, left:right]
            assert not covered[inside].any()
            covered[inside] = True
            assert (rows["classes"][row][inside] == 1 + number).all()
            flat = (rows["image"][row][inside] == 20 + 10 * number).all(axis=2)
            assert flat.size == 0 or flat.mean() > 0.7  # around the noise in its middle
        assert (rows["image"][row][~covered] == (5, 6, 7)).all()
        assert (rows["classes"][row][~covered] == 0).all()
        middles.add(tuple(rows["boxes"][row][0][2:].tolist()))
    assert len(middles) == 6  # the images meet elsewhere in each row


def test_points_stay_with_their_boxes() -> None:
    rows, _ = rows_of(Scenes(SCENES).stream(), pipeline(Mosaic(40)), 6)
    visible = np.argwhere(rows["joints"][..., 2] > 0)
    assert 24 < len(visible) < 96  # those of cut images are not visible
    for row, box, joint in visible:
        x, y, _ = rows["joints"][row, box, joint].astype(int)
        assert rows["classes"][row, y, x] == 1 + rows["labels"][row, box] % 100
    assert (rows["points"][..., 2] > 0).sum() == len(visible) // 2


@pytest.mark.parametrize(
    "ops",
    [
        [Mosaic(24), RandomResizedCrop(20), RandomHorizontalFlip()],
        [RandomHorizontalFlip(), RandomShortestSize(30), Mosaic((20, 30)), CenterCrop(20), SanitizeBoxes()],
        [Resize((20, 24)), Mosaic(16, center=(1, 1), interpolation="bicubic"), ToDtype("float32")],
    ],
)
def test_rows_are_functions_of_their_position(ops: list[Op]) -> None:
    source, made = Scenes(SCENES), pipeline(*ops, views=2)
    rows, _ = rows_of(source.stream(), made, 12)
    assert same(rows, rows_of(source.stream(), made, 1, 4, 2, 5)[0])
    assert rows["image"].tobytes() != rows["image_1"].tobytes()
    assert rows["image"][:6].tobytes() != rows["image"][6:].tobytes()
    assert partners(made, 2, 6, 0) != partners(made, 2, 6, 1)
    # Beside a lane of another pipeline, and from caches.
    other, both = pipeline(CenterCrop(20)), (Arrays(made, 12), Arrays(pipeline(CenterCrop(20)), 12))
    targets = [Lane.of(made, both[0]), Lane.of(other, both[1])]
    fill(source.stream(), targets, 0, 12, nothing)
    assert same(both[0].fields, rows)
    assert same(both[1].fields, rows_of(source.stream(), other, 12)[0])
    cache, again, stream = Cache(6), Arrays(made, 12), source.stream()
    stream.cache = cache.store()
    for _ in range(2):
        fill(stream, [Lane.of(made, again)], 0, 12, nothing)
        assert same(again.fields, rows)
    assert all(stream.cache.holds(index) for index in range(6))
    cache.close()


def test_a_bad_partner_is_passed_over_and_named_at_its_own_place() -> None:
    made = pipeline(Mosaic(24))
    for bad, quarantined in ((frozenset({2}), frozenset[int]()), (frozenset[int](), frozenset({2}))):
        rows, reported = rows_of(Scenes(SCENES, bad).stream(quarantined), made, 6)
        assert [(row.position, row.index) for row in reported] == [(2, 2)]
        # As if the next sample stood in its place, too.
        stand_in = [SCENES[3] if number == 2 else each for number, each in enumerate(SCENES)]
        wanted, _ = rows_of(Scenes(stand_in).stream(), made, 6)
        others = [0, 1, 3, 4, 5]
        assert any(2 in partners(made, row, 6)[1:] for row in others)
        for name in ("image", "classes", "boxes", "labels", "index"):
            assert np.array_equal(rows[name][others], wanted[name][others])
        assert rows["index"][2] == 3  # the replacement, with its own partners


def test_a_damaged_listing_gives_no_partner_another_sample() -> None:
    class Damaged(Scenes):
        def read(self, index: int) -> dict[str, Any]:
            if index == 2:
                raise BrokenContainerError(Path("/x.idx"), "damaged")
            return super().read(index)

    made = pipeline(Mosaic(24))
    row = next(row for row in range(6) if row != 2 and 2 in partners(made, row, 6))
    with pytest.raises(BrokenContainerError, match=r"x\.idx") as caught:
        fill(Damaged(SCENES).stream(), [Lane.of(made, Arrays(made, 6))], row, 1, nothing)
    assert caught.value.__notes__ == [f"met at sample {row}"]


def test_without_any_good_partner_the_row_is_bad() -> None:
    made, bad = pipeline(Mosaic(24)), set(range(1, 30))
    _, reported = rows_of(Scenes([SCENES[0]] * 30, bad).stream(), made, 1)
    assert "can be its partner" in reported[0].reason
    assert "the file is empty" in reported[0].reason


def test_partners_are_read_ahead_and_marked() -> None:
    made, source = pipeline(Mosaic(24)), Scenes(SCENES)
    arrays, marks = Arrays(made, 2), []
    targets = [Lane.of(made, arrays)]
    source.stream().prefetch(3, 2, targets)
    assert source.ahead == [*partners(made, 3, 6), *partners(made, 4, 6)]
    fill(source.stream(), targets, 3, 1, lambda position, index: marks.append((position, index)))
    assert marks == [(3, 3), *((3, index) for index in partners(made, 3, 6)[1:]), (3, 3)]


def test_a_step_names_the_lane_whose_part_or_row_is_made() -> None:
    """A worker that dies in an op of one lane, such as a plug-in, says nothing about the sample in other lanes."""
    made, other, steps = pipeline(Mosaic(24)), pipeline(CenterCrop(20)), list[Any]()
    targets = [Lane.of(other, Arrays(other, 6)), Lane.of(made, Arrays(made, 6))]
    fill(Scenes(SCENES).stream(), targets, 3, 1, lambda position, index: steps.append((position, index)), steps.append)
    marks = [place for place, step in enumerate(steps) if isinstance(step, tuple)]
    assert len(marks) == 5  # the sample, three partners, and the sample again
    for begin, end in itertools.pairwise([*marks, steps.index(0)]):
        assert steps[begin + 1] == 1
        assert steps[end - 1] == DECODING


def test_max_pixels_is_of_files_not_of_what_ops_make() -> None:
    """Neither a canvas nor an image of a cache is what `Decode` limits."""
    columns: dict[str, Kind] = {"image": Image()}
    source = Scenes([{"image": each["image"]} for each in SCENES])
    for ops in ([Mosaic(50)], [Resize(100), CenterCrop(100), RandomHorizontalFlip()]):
        made, cache = Pipeline.from_ops([Decode(max_pixels=4000), *ops], 1, columns), Cache(6)
        rows, bad = rows_of(source.stream(), made, 6)
        assert bad == []
        arrays = Arrays(made, 6)
        target = Lane.of(made, arrays)._replace(cache=cache.store())
        for _ in range(2):
            assert fill(source.stream(), [target], 0, 6, nothing).bad == []
            assert same(arrays.fields, rows)
        cache.close()


def test_impossible_mosaics_are_refused() -> None:
    cases: list[tuple[Callable[[], list[Op]], str]] = [
        (lambda: [Mosaic(8), Mosaic(8)], "only one op of a pipeline may"),
        (lambda: [RandomApply([Mosaic(8)])], "must be an op that"),
        (lambda: [PadBoxes(3), Mosaic(8)], "cannot follow PadBoxes"),
        (lambda: [ToDtype("float32"), Mosaic(8)], "before ToDtype"),
        (lambda: [Mosaic(8, fill=(1, 2, 300))], "whole numbers"),
        (lambda: [Mosaic(9000)], "at most 8192"),
    ]
    for ops, said in cases:
        with pytest.raises(SpecError, match=said):
            Pipeline.from_ops(ops(), 1, COLUMNS)


def test_decoded_images_of_a_cache_make_the_same_rows() -> None:
    """The cache holds the images after `Resize`; the rest is done to each part."""
    columns: dict[str, Kind] = {"image": Image(), "label": Label()}
    made = Pipeline.from_ops([Resize((30, 40)), RandomHorizontalFlip(), Mosaic(24), CenterCrop(30)], 1, columns)
    source, cache = Scenes([{name: each[name] for name in columns} for each in SCENES]), Cache(6)
    rows, _ = rows_of(source.stream(), made, 6)
    arrays = Arrays(made, 6)
    target = Lane.of(made, arrays)._replace(cache=cache.store())
    for _ in range(2):
        fill(source.stream(), [target], 0, 6, nothing)
        assert same(arrays.fields, rows)
    assert all(target.cache is not None and target.cache.holds(index) for index in range(6))
    cache.close()


def test_a_canvas_that_is_too_large_is_refused_before_it_is_made() -> None:
    """It would take 800 MB."""
    made = Pipeline.from_ops([Mosaic(8192), CenterCrop(8), *END], 1, COLUMNS)
    tracemalloc.start()
    try:
        _, bad = rows_of(Scenes(SCENES).stream(), made, 1)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert "would become 16384x16384 pixels on the way" in str(bad)
