"""timm's transforms become the same ops; what has none names the way out. Stand-ins, and timm where it is installed."""

from __future__ import annotations

import functools
import math
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from prepclient import (
    CenterCrop,
    ColorJitter,
    ImageFolder,
    InvalidSpec,
    Normalize,
    PrepClient,
    RandomChoice,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
    from_torchvision,
)
from tests.support.oracle import torchvision

FLOATS = ToDtype("float32", scale=True)
NORMALIZE = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
BOTH = RandomChoice([RandomResizedCrop(224), RandomResizedCrop(224, interpolation="bicubic")])
JITTER = ColorJitter(0.4, 0.4, 0.4)


class Mode(Enum):
    """torchvision's InterpolationMode."""

    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


def of_timm(name: str, *bases: type, module: str = "timm.data.transforms", **attributes: Any) -> Any:
    """An object that looks like timm's."""
    made = type(name, bases, {"__module__": module, "__call__": lambda self, image: image})()
    vars(made).update(attributes)
    return made


def crop(interpolation: Any) -> Any:
    ranges: dict[str, Any] = {"scale": (0.1, 1.0), "ratio": (0.5, 2.0)}
    return of_timm("RandomResizedCropAndInterpolation", size=(8, 9), interpolation=interpolation, **ranges)


def padded(**other: Any) -> Any:
    return of_timm("CenterCropOrPad", **{"size": (8, 9), "fill": 0, "padding_mode": "constant", **other})


def erasing(**other: Any) -> Any:
    given = {
        "probability": 0.25, "min_area": 0.02, "max_area": 1 / 3, "min_count": 1, "max_count": 1, "num_splits": 0,
        "log_aspect_ratio": (math.log(0.3), math.log(1 / 0.3)), "per_pixel": False, "rand_color": False, **other,
    }  # fmt: skip
    return of_timm("RandomErasing", module="timm.data.random_erasing", **given)


OURS = functools.partial(RandomResizedCrop, (8, 9), (0.1, 1.0), (0.5, 2.0))
ERASING = functools.partial(RandomErasing, 0.25, (0.02, 1 / 3), (0.3, round(1 / 0.3, 12)))


@pytest.mark.parametrize(
    ("transform", "ops"),
    [
        (crop(Mode.BICUBIC), [OURS("bicubic")]),
        (crop((Mode.BILINEAR, Mode.BICUBIC)), [RandomChoice([OURS("bilinear"), OURS("bicubic")])]),
        (padded(), [CenterCrop((8, 9))]),
        (padded(fill=[0, 0, 0]), [CenterCrop((8, 9))]),
        (erasing(), [ERASING()]),
        (erasing(per_pixel=True), [ERASING("random")]),
        (of_timm("MaybeToTensor"), [FLOATS]),
        (of_timm("MaybePILToTensor"), []),
        ((padded(), [of_timm("MaybePILToTensor")]), [CenterCrop((8, 9))]),  # separate=True gives a tuple
    ],
)
def test_what_is_the_same_is_translated(transform: Any, ops: list[Any]) -> None:
    assert from_torchvision(transform) == ops


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (crop(Mode.LANCZOS), r"transform.interpolation \(RandomResizedCropAndInt.*'lanczos'.* must be 'bilinear' or"),
        (padded(fill=(124, 116, 104)), r"transform.fill \(CenterCropOrPad\): .* must be 0"),
        (padded(padding_mode="reflect"), "transform.padding_mode .* must be 'constant'"),
        (erasing(max_count=3), r"transform.max_count \(RandomErasing\): 3 must be 1"),
        (erasing(rand_color=True), "transform.mode .*'rand' must be 'const' or 'pixel'"),
        (of_timm("CenterCropOrPad"), r"transform.padding_mode \(.*: this release of timm keeps no such attribute"),
        (
            of_timm("RandAugment"),
            r"timm's RandAugment\): .*prepclient.RandAugment\(num_ops, magnitude, .*from its `rng`",
        ),
        (
            of_timm("AutoAugment"),
            r"prepclient.AutoAugment\(\) or RandAugment\(.* is torchvision's, not timm's; or make",
        ),
        (of_timm("AugMixAugment"), r"prepclient.AugMix\(\) or .*RandAugment\(num_ops, magnitude\)"),
        (of_timm("ResizeKeepRatio"), "rounds the other side.* crop_mode='squash'"),
        (of_timm("TrimBorder"), r"\(TrimBorder\): prepserver has no op that does the same.* make it a plug-in"),
        (of_timm("ToTensor"), r"\(ToTensor\): prepserver has no op"),  # timm's does not scale
        (of_timm("Resize"), r"\(Resize\): prepserver has no op"),
        (of_timm("MaybeToTensor", module="theirs"), r"\(MaybeToTensor\): it is no transform of torchvision"),
    ],
)
def test_what_is_not_the_same_names_the_way_out(transform: Any, said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        from_torchvision(transform)


@pytest.mark.parametrize("version", ["transforms", "transforms.v2"])
@pytest.mark.parametrize(("name", "ops"), [("ToTensor", [FLOATS]), ("PILToTensor", [])])
@pytest.mark.filterwarnings("ignore")
def test_subclasses_of_conversions(name: str, ops: list[Any], version: str) -> None:
    base = getattr(torchvision(version), name)
    assert from_torchvision(type("Ours", (base,), {"__module__": "ours"})()) == ops
    assert from_torchvision(of_timm(f"Maybe{name}", base, module="dinov2.data.transforms")) == ops
    with pytest.raises(InvalidSpec, match="it is no transform of torchvision"):  # it may do anything
        from_torchvision(of_timm("Ours", base, module="ours"))


def timms(**given: Any) -> Any:
    """What the real `create_transform` returns."""
    torchvision("transforms")  # may need help to be imported
    factory = pytest.importorskip("timm.data.transforms_factory", reason="needs timm")
    return factory.create_transform((3, 224, 224), **given)


@pytest.mark.parametrize(
    ("given", "ops"),
    [
        ({"interpolation": "random"}, [BOTH, RandomHorizontalFlip(), JITTER, FLOATS, NORMALIZE]),
        ({"interpolation": "random", "use_prefetcher": True}, [BOTH, RandomHorizontalFlip(), JITTER]),
        (
            {"color_jitter": None, "re_prob": 0.25, "re_mode": "pixel"},
            [RandomResizedCrop(224), RandomHorizontalFlip(), FLOATS, NORMALIZE, ERASING("random")],
        ),
        ({"no_aug": True, "normalize": False}, [Resize((224, 224)), CenterCrop(224)]),
        ({"is_training": False}, [Resize(256), CenterCrop(224), FLOATS, NORMALIZE]),
        (
            {"is_training": False, "crop_pct": 0.95, "interpolation": "bicubic", "use_prefetcher": True},
            [Resize(235, "bicubic"), CenterCrop(224)],
        ),
        (
            {"is_training": False, "crop_pct": 1.0, "crop_mode": "squash"},
            [Resize((224, 224)), CenterCrop(224), FLOATS, NORMALIZE],
        ),
    ],
)
def test_the_real_compositions_are_translated(given: dict[str, Any], ops: list[Any]) -> None:
    assert from_torchvision(timms(**{"is_training": True, **given})) == ops


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"auto_augment": "rand-m9-mstd0.5-inc1"}, r"timm's RandAugment\).*num_magnitude_bins=11"),
        ({"auto_augment": "v0"}, r"timm's AutoAugment\).*prepclient.AutoAugment\(\)"),
        ({"auto_augment": "augmix-m5-w4-d2"}, r"timm's AugMixAugment\).*prepclient.AugMix\(\)"),
        ({"train_crop_mode": "rkrc"}, r"timm's ResizeKeepRatio\).*train_crop_mode='rrc'"),
        ({"is_training": False, "crop_mode": "border"}, r"timm's ResizeKeepRatio\).*'squash'"),
        ({"re_prob": 0.25, "re_mode": "rand"}, "'rand' must be 'const' or 'pixel'"),
        ({"re_prob": 0.25, "re_count": 2}, "max_count .*2 must be 1"),
    ],
)
def test_the_real_ones_without_ops_name_the_way_out(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        from_torchvision(timms(**{"is_training": True, **given}))


def test_a_translated_evaluation_makes_timms_values(tmp_path: Path) -> None:
    transform = timms(crop_pct=0.95)
    (tmp_path / "a").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a" / "x.png")
    with PrepClient(ImageFolder(tmp_path), from_torchvision(transform), batch_size=1, inline=True) as client:
        ((images, _),) = list(client)
    torch.testing.assert_close(images[0], transform(Image.fromarray(pixels)), rtol=0, atol=0.02)  # a level: 0.0175


@pytest.mark.parametrize("sizes", [(20, 30), (5, 30), (5, 7), (9, 8)])
def test_the_real_padded_crop_is_a_centre_crop(sizes: tuple[int, int], tmp_path: Path) -> None:
    torchvision("transforms")
    module = pytest.importorskip("timm.data.transforms", reason="needs timm")
    (tmp_path / "a").mkdir()
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*sizes, 3), np.uint8))
    image.save(tmp_path / "a" / "x.png")
    theirs = module.CenterCropOrPad((8, 11))
    with PrepClient(ImageFolder(tmp_path), from_torchvision(theirs), batch_size=1, inline=True) as client:
        ((images, _),) = list(client)
    assert np.array_equal(images[0].permute(1, 2, 0).numpy(), np.asarray(theirs(image)))
