"""Pipelines of torchvision become the same ops, or the error names the step that does not."""

from __future__ import annotations

import inspect
import re
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import prepclient
from prepclient import (
    ColorJitter,
    ImageFolder,
    InvalidSpec,
    Normalize,
    PrepClient,
    RandomApply,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
    from_torchvision,
)
from prepserver.pipeline.ops import OPS
from tests.support.oracle import torchvision

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
AUGMENTATION = (Path(__file__).parents[3] / "docs" / "augmentation.md").read_text()
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "CenterCrop": (7,), "Resize": (9,), "RandomCrop": (7,), "RandomResizedCrop": (7,), "Pad": (3,),
    "Normalize": (MEAN, STD), "GaussianBlur": (5,), "RandomRotation": (30,), "RandomAffine": (30,),
    "RandomPosterize": (3,), "RandomSolarize": (128,), "RandomAdjustSharpness": (2,), "JPEG": (50,),
    "RandomResize": (7, 9), "RandomShortestSize": (7,), "ScaleJitter": ((7, 9),),
    "FiveCrop": (7,), "TenCrop": ((7, 9), True),
}  # fmt: skip
NESTING = ("RandomApply", "RandomChoice", "RandomOrder")
SAME = {*re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.+) \| the same \|", AUGMENTATION, re.MULTILINE)))}
NAMES = sorted(SAME - {*NESTING})


@pytest.mark.parametrize("version", ["transforms", "transforms.v2"])
@pytest.mark.parametrize("name", NAMES)
def test_defaults_and_order_of_parameters_are_torchvisions(name: str, version: str) -> None:
    module = torchvision(version)
    if version == "transforms" and not hasattr(module, name):
        return
    arguments = (torch.float32,) if name == "ToDtype" else ARGUMENTS.get(name, ())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transform = getattr(module, name)(*arguments)
    assert from_torchvision(transform) == [getattr(prepclient, name)(*arguments)]
    ours, theirs = (list(inspect.signature(each).parameters) for each in (OPS[name], type(transform)))
    assert [each for each in theirs if each in ours] == [each for each in ours if each in theirs]


def test_values_that_torchvision_keeps_in_another_form() -> None:
    for version in ("transforms", "transforms.v2"):
        module = torchvision(version)
        mode = module.InterpolationMode.BICUBIC
        given: Any
        for given, wanted in (
            (module.RandomCrop(9, [1, 2, 3, 4], True, 5, "edge"), RandomCrop(9, [1, 2, 3, 4], True, 5, "edge")),
            (module.RandomCrop(9, 2), RandomCrop(9, 2)),
            (module.ColorJitter(0.3, hue=0.1), ColorJitter(0.3, hue=0.1)),
            (module.RandomErasing(0.3, value="random"), RandomErasing(0.3, value="random")),
            (module.RandomErasing(value=(1, 2, 3)), RandomErasing(value=(1, 2, 3))),
            (module.Resize([8], mode, 20), Resize(8, "bicubic", 20)),
            (module.RandomResizedCrop(8, interpolation=mode), RandomResizedCrop(8, interpolation="bicubic")),
            (module.RandomAffine(9, (0.1, 0.2), (1, 2), (1, 2, 3, 4), module.InterpolationMode.BILINEAR, 7, (1, 2)),
             prepclient.RandomAffine(9, (0.1, 0.2), (1, 2), (1, 2, 3, 4), "bilinear", 7, (1, 2))),
            (module.AutoAugment(module.AutoAugmentPolicy.SVHN), prepclient.AutoAugment("svhn")),
            (module.GaussianBlur((3, 5), 1.0), prepclient.GaussianBlur((3, 5), 1.0)),
            (module.ConvertImageDtype(torch.float16), ToDtype("float16", scale=True)),
        ):  # fmt: skip
            assert from_torchvision(given) == [wanted]


@pytest.mark.parametrize("version", ["transforms", "transforms.v2"])
def test_a_tree_becomes_a_list(version: str) -> None:
    t = torchvision(version)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = t.Compose([
            t.RandomResizedCrop(24),
            t.Compose([t.RandomHorizontalFlip(0.3), t.PILToTensor()]),
            t.RandomApply([t.ColorJitter(0.4, 0.4), t.RandomChoice([t.RandomInvert(), t.GaussianBlur(3)])], p=0.8),
            t.RandomApply(torch.nn.ModuleList([t.RandomGrayscale()])),
            t.RandomOrder([t.RandomEqualize(), t.RandAugment()]),
            torch.nn.Sequential(t.ConvertImageDtype(torch.float32), t.Normalize(MEAN, STD)),
            t.RandomErasing(0.25),
        ])  # fmt: skip
    ops = from_torchvision(tree)
    assert ops == [
        RandomResizedCrop(24),
        RandomHorizontalFlip(0.3),
        RandomApply(
            [ColorJitter(0.4, 0.4), prepclient.RandomChoice([prepclient.RandomInvert(), prepclient.GaussianBlur(3)],
                                                            p=None if version == "transforms" else [0.5, 0.5])],
            p=0.8,
        ),
        RandomApply([prepclient.RandomGrayscale()]),
        prepclient.RandomOrder([prepclient.RandomEqualize(), prepclient.RandAugment()]),
        ToDtype("float32", scale=True),
        Normalize(MEAN, STD),
        RandomErasing(0.25),
    ]  # fmt: skip


def test_a_translated_pipeline_makes_torchvisions_pixels(tmp_path: Path) -> None:
    t = torchvision("transforms")
    (tmp_path / "a").mkdir()
    rng = np.random.default_rng(0)
    image = Image.fromarray(np.kron(rng.integers(0, 256, (6, 8, 3), np.uint8), np.ones((8, 8, 1), np.uint8)))
    image.save(tmp_path / "a" / "x.png")
    tree = t.Compose([t.Resize(32), t.CenterCrop(24), t.RandomInvert(1.0), t.ToTensor(), t.Normalize(MEAN, STD)])
    with PrepClient(ImageFolder(tmp_path), from_torchvision(tree), batch_size=1, inline=True) as client:
        ((images, _),) = list(client)
    assert (images[0] - tree(image)).abs().max() < 0.02


def test_transforms_of_boxes_have_names_of_their_own() -> None:
    t = torchvision("transforms.v2")
    assert from_torchvision([
        t.RandomZoomOut(fill=7), t.RandomIoUCrop(0.4, sampler_options=[0.5, 1.0], trials=3), t.ClampBoundingBoxes(),
        t.SanitizeBoundingBoxes(3, 20), t.ConvertBoundingBoxFormat("CXCYWH"), t.Resize(None, max_size=640),
    ]) == [
        prepclient.RandomZoomOut(fill=7), prepclient.RandomIoUCrop(0.4, sampler_options=[0.5, 1.0], trials=3),
        prepclient.ClampBoxes(), prepclient.SanitizeBoxes(3, 20), prepclient.ConvertBoxes("cxcywh"),
        Resize(None, max_size=640),
    ]  # fmt: skip
    ours, theirs = (list(inspect.signature(each).parameters) for each in (prepclient.RandomIoUCrop, t.RandomIoUCrop))
    assert ours == theirs


def test_fills_of_types_of_data_are_those_of_image_and_mask() -> None:
    t, types = torchvision("transforms.v2"), torchvision("tv_tensors")
    fills: Any
    for fills, image, mask in (
        ({types.Image: 9, types.Mask: 255}, 9, 255),
        ({types.Mask: 255, "others": (1, 2, 3)}, (1, 2, 3), 255),
        ({types.Image: 9, types.Mask: None, "others": 7}, 9, 0),
        ({types.Image: 9}, 9, 0), ({types.Mask: 255}, 0, 255), ({"others": 7}, 7, 7),
        (defaultdict(lambda: 9, {types.Mask: 255}), 9, 255),
    ):  # fmt: skip
        ours = [RandomCrop(9, fill=image, mask_fill=mask), prepclient.RandomAffine(9, fill=image, mask_fill=mask)]
        assert from_torchvision([t.RandomCrop(9, fill=fills), t.RandomAffine(9, fill=fills)]) == ours
        assert from_torchvision(t.AugMix(fill=fills)) == [prepclient.AugMix(fill=image)]  # which leaves masks alone


class Theirs:
    """A transform of nobody's."""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda t: t.Compose([t.RandomHorizontalFlip(), t.ToPILImage()]), r"transform.transforms\[1\] \(ToPIL"),
        (
            lambda t: [t.RandomApply([t.FiveCrop(3)])],
            r"transform\[0\].transforms\[0\] \(RandomApply\): FiveCrop.* stand in another",
        ),
        (
            lambda t: [t.LinearTransformation(torch.eye(3), torch.zeros(3))],
            r"transform\[0\] \(LinearTr.*: numpy.save\(",
        ),
        (lambda t: t.Compose([t.MixUp(num_classes=9)]), r"transforms\[0\] \(MixUp\): .* pass device_ops=\[MixUp\("),
        (lambda t: t.RandomZoomOut({int: 3}), r"Write it with prepclient's ops \(docs/augmentation.md\)$"),
        (lambda t: t.ConvertBoundingBoxFormat("XYWHR"), r"transform.form .*Write it with prepclient's ops"),
        (lambda t: t.CutMix(num_classes=9), r"transform \(CutMix\): .* pass device_ops=\[CutMix\("),
        (lambda t: t.Lambda(abs), r'PluginOp\("lambda"\).*docs/plugins.md'),
        (lambda t: Theirs(), r"transform \(Theirs\): it is no transform of torchvision"),
        (lambda t: t.Resize(9, antialias=False), r"transform.antialias \(Resize\): False must be True"),
        (lambda t: t.RandomRotation(9, t.InterpolationMode.BICUBIC), "transform.interpolation .*'nearest' or"),
        (lambda t: t.ToDtype({torch.Tensor: torch.float32}), "a value for each type of data"),
        (lambda t: t.RandomAffine(9, fill={int: 3}), r"fill \(RandomAffine\): only Image, Mask and \"others\" may"),
        (lambda t: t.Pad(1, fill={"others": 0.5}), "mask_fill .*0.5 must be an integer"),
        (lambda t: t.RandomApply([t.Compose([t.RandomInvert(), t.RandomInvert()])]), "is 2 ops here"),
        (lambda t: t.RandomApply([t.ToImage()]), "is 0 ops here"),
    ],
)
def test_what_has_no_equivalent_is_named_with_a_way_out(make: Any, said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        from_torchvision(make(torchvision("transforms.v2")))


def test_a_parameter_of_another_release_is_named() -> None:
    module = "torchvision.transforms.v2._color"
    newer = type("RandomInvert", (), {"__module__": module, "__init__": lambda self, p=0.5, how="all": None})
    transform: Any = newer()
    with pytest.raises(InvalidSpec, match="keeps no such attribute"):
        from_torchvision(transform)
    transform.p, transform.how = 0.5, "all"
    assert from_torchvision(transform) == [prepclient.RandomInvert()]
    transform.how = "some"
    with pytest.raises(
        InvalidSpec, match=r"transform.how \(RandomInvert\): prepserver's RandomInvert has no such parameter"
    ):
        from_torchvision(transform)


def test_every_op_that_is_translated_is_in_the_table() -> None:
    both = {name for name in OPS if hasattr(torchvision("transforms.v2"), name)}
    assert both - SAME == {"LinearTransformation"}, 'name the others in a row "the same" of docs/augmentation.md'
