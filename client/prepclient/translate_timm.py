"""The ops for timm's own transforms, and the way out where there is none: known by class name and module only."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import Op
from prepserver.pipeline.ops import CenterCrop, RandomChoice, RandomErasing, RandomResizedCrop


def _crop(given: Any) -> Op:
    modes = given.interpolation  # a tuple means that one is drawn for each sample
    crops = [
        RandomResizedCrop(given.size, given.scale, given.ratio, mode)
        for mode in (modes if isinstance(modes, Sequence) and not isinstance(modes, str) else [modes])
    ]
    return RandomChoice(crops) if len(crops) > 1 else crops[0]


def _centre(given: Any) -> Op:
    if given.padding_mode != "constant":
        raise SpecError("padding_mode", given.padding_mode, "must be 'constant': CenterCrop pads with 0")
    if any(given.fill) if isinstance(given.fill, Sequence) else given.fill:
        raise SpecError("fill", given.fill, "must be 0, with which CenterCrop pads")
    return CenterCrop(given.size)


def _erasing(given: Any) -> Op:
    if (given.min_count, given.max_count) != (1, 1):
        raise SpecError(
            "max_count", given.max_count, "must be 1, as must min_count: RandomErasing erases one rectangle"
        )
    if given.rand_color:
        raise SpecError("mode", "rand", "must be 'const' or 'pixel': RandomErasing draws no colour for a rectangle")
    ratio = [round(math.exp(each), 12) for each in given.log_aspect_ratio]
    value = "random" if given.per_pixel else 0
    return RandomErasing(given.probability, (given.min_area, given.max_area), ratio, value)


TIMM_OPS: dict[str, Callable[[Any], Op]] = {
    "CenterCropOrPad": _centre,
    "RandomErasing": _erasing,
    "RandomResizedCropAndInterpolation": _crop,
}
"""By timm's names. Each gives the op that does exactly the same, or raises `SpecError` for a value that no op supports,
or `AttributeError` for an attribute that the transform lacks."""

_PLUGIN = "or make timm's a plug-in that seeds `random` and `numpy.random` from its `rng` (docs/migrating.md, timm)"
INSTEAD_OF_TIMM = {
    "RandAugment": "timm's changes and their odds are its own. prepclient.RandAugment(num_ops, magnitude, "
    f"num_magnitude_bins=11) in its place is torchvision's, not timm's; {_PLUGIN}",
    "AutoAugment": "timm's changes and policies are its own. prepclient.AutoAugment() or RandAugment(num_ops, "
    f"magnitude) in its place is torchvision's, not timm's; {_PLUGIN}",
    "AugMixAugment": "timm's changes are its own. prepclient.AugMix() or RandAugment(num_ops, magnitude) in its place "
    f"is torchvision's, not timm's; {_PLUGIN}",
    "ResizeKeepRatio": "it rounds the other side, which prepclient.Resize truncates, and may draw its size. Let timm's "
    "create_transform use train_crop_mode='rrc', crop_mode='squash', or 'center' with a square size; or write "
    "prepclient's ops instead",
}
"""What to write instead of a transform that has no op, unless only a plug-in does the same."""
