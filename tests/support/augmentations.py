"""Every op that augments images by chance: the one list that tests of specs, of rows and of daemons draw from."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Collection
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from prepserver.pipeline.kinds import Image
from prepserver.pipeline.ops import (
    JPEG,
    OPS,
    AugMix,
    AutoAugment,
    CenterCrop,
    ClampBoxes,
    ColorJitter,
    ConvertBoxes,
    CopyPaste,
    Decode,
    ElasticTransform,
    FiveCrop,
    GaussianBlur,
    Grayscale,
    LinearTransformation,
    MaskTokens,
    Mosaic,
    Normalize,
    Only,
    Op,
    Pad,
    PadArray,
    PadBoxes,
    PadKeypoints,
    PadTokens,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomIoUCrop,
    RandomOrder,
    RandomPerspective,
    RandomPosterize,
    RandomResize,
    RandomResizedCrop,
    RandomRotation,
    RandomShortestSize,
    RandomSolarize,
    RandomZoomOut,
    Resize,
    SanitizeBoxes,
    ScaleJitter,
    TenCrop,
    ToDtype,
    ToLayout,
    TrivialAugmentWide,
    Truncate,
)


class Policy(Enum):
    """As torchvision's."""

    SVHN = "svhn"


_SIZE = (16, 18)
_BY_DEFAULT = [
    op()
    for op in OPS.values()
    if op.nests and not any(each.default is each.empty for each in inspect.signature(op).parameters.values())
]
SAME_SIZE: list[Op] = [
    *(op for op in _BY_DEFAULT if op.kind_after(Image(_SIZE)) == Image(_SIZE)),
    JPEG(50), JPEG((1, 100)), AutoAugment(Policy.SVHN), ColorJitter(0.4, 0.4, 0.4, 0.1), ElasticTransform(300, fill=7),
    GaussianBlur((3, 5), [1.0]), GaussianBlur(3, (1, 2)), Grayscale(3), RandomAdjustSharpness(2),
    RandomAffine(3, (0, 0.5), (1, 2), 5, fill=None), RandomAffine(3, shear=(1, 2, 3, 4), center=(3, 4)),
    RandomErasing(1, value="random"), RandomErasing(value=(1, 2, 3)), RandomGrayscale(0.5), RandomPosterize(3),
    RandomRotation((3, 4)), RandomSolarize(9),
]  # fmt: skip
"""What keeps an image's shape: each op that needs no parameters, and examples of others."""

OTHER_SIZE: list[Op] = [
    RandomResize(9, 12), RandomShortestSize(9), RandomShortestSize([9, 12], 20), ScaleJitter((9, 12), (0.5, 1.5)),
    RandomRotation(3, expand=True), RandomZoomOut(9, (1, 2)),
]  # fmt: skip
"""What draws another height and width for each image."""

_MODE = st.sampled_from(["nearest", "bilinear"])
_ONE = st.one_of(
    st.sampled_from([
        *SAME_SIZE, *OTHER_SIZE,
        Resize((20, 30)), Resize(None, max_size=21), Pad(2), RandomResizedCrop(24), CenterCrop(18),
        RandomCrop(17, pad_if_needed=True),
    ]),
    st.builds(RandomPosterize, st.integers(0, 8)),
    st.builds(RandomSolarize, st.floats(0, 256)),
    st.builds(RandomAdjustSharpness, st.floats(0, 3)),
    st.builds(RandAugment, st.integers(0, 4), st.integers(0, 30), interpolation=_MODE, fill=st.integers(0, 255)),
    st.builds(TrivialAugmentWide, interpolation=_MODE),
    st.builds(AutoAugment, st.sampled_from(["imagenet", "cifar10", "svhn"]), _MODE),
    st.builds(AugMix, st.integers(1, 10), st.integers(1, 3), all_ops=st.booleans(), interpolation=_MODE),
    st.builds(RandomRotation, st.floats(0, 180), _MODE, st.booleans(), mask_fill=st.sampled_from([None, 0, 255])),
    st.builds(RandomAffine, st.just(30), st.just((0.2, 0.3)), st.just((0.5, 2)), st.just((5, 9, -4, 4)), _MODE),
    st.builds(RandomPerspective, st.floats(0, 1), st.just(0.9), _MODE),
    st.builds(ElasticTransform, st.floats(0, 500), st.sampled_from([0.0, 0.6, (5, 9)]), _MODE, st.integers(0, 255)),
)  # fmt: skip
_FEW = st.lists(_ONE, min_size=1, max_size=3)
ANY = st.one_of(
    _ONE,
    st.builds(RandomApply, _FEW),
    st.builds(RandomChoice, _FEW),
    st.builds(RandomOrder, _FEW),
    st.builds(lambda op: RandomApply([RandomChoice([op, op], p=[1, 3])], p=0.9), _ONE),
)
"""Any op on images with any parameters, in a container of ops or not."""

_WITH_BOXES = st.one_of(
    ANY,
    st.sampled_from([
        RandomIoUCrop(), RandomIoUCrop(trials=3), SanitizeBoxes(), ClampBoxes(), Only("image", RandomErasing(1)),
        Resize((23, 30), "bicubic"),
    ]),
)  # fmt: skip
_MIXED: list[tuple[Op, ...]] = [(), (Mosaic(16),), (Mosaic((12, 20), (0.0, 2.0), (1, 2, 3), "bicubic"),)]
_LAST = st.sampled_from([
    (), (Grayscale(1),), (ToLayout("CHW"),),
    (ToDtype("float32", scale=True), Normalize([0.5], [0.2]), RandomErasing(1)),
]) | st.just(None)  # fmt: skip
"""None for `whitened`, which depends on the size."""

_VIEWS: list[tuple[tuple[Op, ...], int]] = [((), 1), ((), 1), ((), 2), ((FiveCrop(9),), 5)]
_FOLDER = tempfile.TemporaryDirectory()


@cache
def whitened(height: int, width: int) -> tuple[Op, Op]:
    """A `LinearTransformation` by random files, for images of one size."""
    count, rng = 3 * height * width, np.random.default_rng(0)
    files = [Path(_FOLDER.name, f"{name}_{count}.npy") for name in ("matrix", "mean")]
    for file, shape in zip(files, ((count, count), (count,)), strict=True):
        np.save(file, rng.normal(0.0, count**-0.5, shape).astype(np.float32))
    return ToDtype("float16", scale=True), LinearTransformation(files[0], files[1])


def _together(parts: Any) -> tuple[list[Op], int]:
    first, before, mixed, after, (crops, views), ends, last = parts
    if last is None:
        last = whitened(*(crops[0].size if crops else _SIZE))
    return [*first, *before, *mixed, *after, Resize(_SIZE), *crops, *ends, *last], views


def pipelines(columns: Collection[str]) -> st.SearchStrategy[tuple[list[Op], int]]:
    """Ops and views for samples with images, boxes and any other of these columns.

    All ops are among them, but those that need code of the daemon's owner or a tokenizer.
    """
    ends: list[Op] = [PadBoxes(5, "largest"), ConvertBoxes("cxcywh", normalize=True)]
    if "points" in columns:
        ends.append(PadKeypoints(3))
    objects = "instances" if "instances" in columns else "labels" if "classes" in columns else ""
    paste = CopyPaste("mask" if objects == "instances" else "classes", objects)
    mixed = st.sampled_from([*_MIXED, (Resize((20, 24)), paste) if objects else ()])
    texts: list[tuple[Op, ...]] = [()]
    if "tokens" in columns:
        masking = PadTokens(4, mask=None), MaskTokens(1, 9, [0], labels="masked")
        texts = [(Truncate(3, side="left"), PadTokens(4)), (Truncate(3), *masking)]
    if "track" in columns:
        ends += [Truncate(3, "track", side="random"), PadArray((4, 2), "track")]
    # Ten views of so many columns would take long.
    views = _VIEWS if {"joints", "keypoints"} & set(columns) else [*_VIEWS, ((TenCrop(8, True),), 10)]
    return st.tuples(
        st.sampled_from([(), (), (Decode(exif_orientation=False),)]),
        st.lists(_WITH_BOXES, max_size=3), mixed, st.lists(_WITH_BOXES, max_size=2), st.sampled_from(views),
        st.sampled_from([(*ends, *each) for each in texts]), _LAST,
    ).map(_together)  # fmt: skip
