"""Which ops are the head of a pipeline, and which cache a job asks for."""

from __future__ import annotations

import pytest

from prepserver.pipeline.caching import MAX_PATH_CHARS, CacheSpec, head_of, wanted
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Boxes, Image, Label
from prepserver.pipeline.ops import (
    CenterCrop,
    Decode,
    Grayscale,
    Normalize,
    Only,
    Op,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
    ToLayout,
)
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import Columns, images

CROP = RandomCrop(8)


@pytest.mark.parametrize(
    ("ops", "names"),
    [
        ([Resize(16), CROP], ("Decode", "Resize")),
        ([Resize(16), CenterCrop(8)], ("Decode", "Resize", "CenterCrop")),
        ([RandomResizedCrop(8), Resize(4)], ("Decode",)),
        ([Pad(4), CROP, CenterCrop(4)], ("Decode", "Pad")),
        ([Resize((8, 8)), Grayscale(1), ToDtype("float32")], ("Decode", "Resize", "Grayscale")),
        ([Resize((8, 8)), ToDtype("float32"), Normalize([0.5] * 3, [0.5] * 3)], ("Decode", "Resize")),
        ([Resize((8, 8)), ToLayout("CHW")], ("Decode", "Resize")),
        ([Only("image", Grayscale(3)), Resize((8, 8))], ("Decode",)),
        ([Resize((8, 8))], ("Decode", "Resize")),
    ],
)
def test_the_head_ends_before_chance_and_before_floats(ops: list[Op], names: tuple[str, ...]) -> None:
    head = head_of(Pipeline.from_ops(ops))
    assert (head.names, head.count) == (names, len(names) - 1)


def test_pipelines_share_a_head_whatever_follows_it() -> None:
    head = head_of(Pipeline.from_ops([Resize(16), CROP]))
    assert head_of(Pipeline.from_ops([Resize(16), RandomResizedCrop(4), RandomHorizontalFlip()])) == head
    assert head_of(Pipeline.from_ops([Resize(16), CROP], views=2)) == head
    for other in ([Resize(17), CROP], [Decode(max_pixels=10_000), Resize(16), CROP], [Resize(16), Grayscale(), CROP]):
        assert head_of(Pipeline.from_ops(other)).digest != head.digest


RESIZED = Pipeline.from_ops([Resize(16), CROP])
CROPPED = Pipeline.from_ops([RandomResizedCrop(8)])


def test_a_folder_holds_images_where_an_op_makes_them_smaller() -> None:
    head = head_of(RESIZED)
    assert wanted("", RESIZED) is None
    assert wanted("encoded", RESIZED) == CacheSpec("encoded")
    assert wanted("decoded", RESIZED) == CacheSpec("decoded", head.digest, ("Decode", "Resize"))
    assert wanted("decoded", CROPPED) == CacheSpec("decoded", head_of(CROPPED).digest, ("Decode",))
    assert wanted("/here", RESIZED) == CacheSpec("decoded", head.digest, ("Decode", "Resize"), "/here")
    assert wanted("/here", CROPPED) == CacheSpec("encoded", folder="/here")


@pytest.mark.parametrize("cache", ["ENCODED", "here", "./here", "/a\0b", "/" + "x" * MAX_PATH_CHARS])
def test_another_cache_is_refused(cache: str) -> None:
    with pytest.raises(SpecError, match="cache"):
        wanted(cache, RESIZED)


@pytest.mark.parametrize("columns", [{"label": Label()}, {"image": Image(), "boxes": Boxes(count=3)}])
def test_decoded_samples_have_images_and_at_most_masks(columns: Columns) -> None:
    pipeline = Pipeline.from_ops([Resize((8, 8))] if "image" in columns else [], columns=columns)
    with pytest.raises(SpecError, match="use 'encoded'"):
        wanted("decoded", pipeline)
    assert wanted("/here", pipeline) == CacheSpec("encoded", folder="/here")
    assert wanted("decoded", Pipeline.from_ops([Resize((8, 8))], columns=images(mask=True))) is not None


def test_images_that_are_moved_apart_are_kept_encoded() -> None:
    columns: Columns = {"top": Image((24, 32)), "wrist": Image((16, 16))}
    with pytest.raises(SpecError, match="use 'encoded'"):
        wanted("decoded", Pipeline.from_ops([CenterCrop(8)], columns=columns))
