"""Image processors of known types become ops; whatever else may change pixels is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prepclient import CenterCrop, InvalidSpec, Normalize, Resize, ToDtype, from_processor
from prepclient.translate_processor import _TYPES

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
AUGMENTATION = (Path(__file__).parents[3] / "docs" / "augmentation.md").read_text()
VIT = {
    "do_resize": True, "size": {"height": 224, "width": 224}, "resample": 2, "do_rescale": True,
    "rescale_factor": 0.00392156862745098, "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    "image_processor_type": "ViTImageProcessor",
}  # fmt: skip
CLIP = {
    "crop_size": {"height": 224, "width": 224}, "do_center_crop": True, "do_convert_rgb": True, "do_normalize": True,
    "do_rescale": True, "do_resize": True, "image_mean": MEAN, "image_std": STD, "resample": 3,
    "rescale_factor": 1 / 255, "size": {"shortest_edge": 224}, "image_processor_type": "CLIPImageProcessor",
}  # fmt: skip
CONVNEXT = {
    "crop_pct": 0.875, "do_normalize": True, "do_resize": True, "feature_extractor_type": "ConvNextFeatureExtractor",
    "image_mean": MEAN, "image_std": STD, "resample": 3, "size": 224,
}  # fmt: skip
QWEN = {
    "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
    "image_mean": MEAN, "image_std": STD, "image_processor_type": "Qwen2VLImageProcessor",
}  # fmt: skip
FLOATS = ToDtype("float32", scale=True)
NORMALIZE = Normalize(MEAN, STD)
CLIP_OPS = [Resize(224, "bicubic"), CenterCrop(224), FLOATS, NORMALIZE]


def only(kind: str, **given: Any) -> dict[str, Any]:
    """A file that leaves all to the defaults of its type that has any."""
    return {"image_processor_type": kind, "size": 8, "image_mean": MEAN, "image_std": STD, **given}


@pytest.mark.parametrize(
    ("config", "ops"),
    [
        (VIT, [Resize((224, 224)), FLOATS, Normalize([0.5] * 3, [0.5] * 3)]),
        (CLIP, CLIP_OPS),
        (CONVNEXT, [Resize(256, "bicubic"), CenterCrop(224), FLOATS, NORMALIZE]),
        ({**CONVNEXT, "crop_pct": None}, [Resize(256, "bicubic"), CenterCrop(224), FLOATS, NORMALIZE]),
        ({**CONVNEXT, "size": {"shortest_edge": 384}}, [Resize((384, 384), "bicubic"), FLOATS, NORMALIZE]),
        (only("ViTFeatureExtractor"), [Resize((8, 8)), FLOATS, NORMALIZE]),
        (only("SiglipImageProcessorFast", default_to_square=True), [Resize((8, 8), "bicubic"), FLOATS, NORMALIZE]),
        (only("BlipImageProcessorPil", default_to_square=None), [Resize((8, 8), "bicubic"), FLOATS, NORMALIZE]),
        (only("CLIPFeatureExtractor", crop_size=6), [Resize(8, "bicubic"), CenterCrop(6), FLOATS, NORMALIZE]),
        (only("DeiTImageProcessor", crop_size=6), [Resize((8, 8), "bicubic"), CenterCrop(6), FLOATS, NORMALIZE]),
        (only("MobileNetV2ImageProcessor", crop_size=6), [Resize(8), CenterCrop(6), FLOATS, NORMALIZE]),
        (only("BeitImageProcessor", do_center_crop=False), [Resize((8, 8), "bicubic"), FLOATS, NORMALIZE]),
        (
            only("DPTImageProcessor", ensure_multiple_of=1, keep_aspect_ratio=False, do_pad=None, size_divisor=32),
            [Resize((8, 8), "bicubic"), FLOATS, NORMALIZE],
        ),
        (
            only("GotOcr2ImageProcessor", crop_to_patches=False, max_patches=12, do_center_crop=None),
            [Resize((8, 8), "bicubic"), FLOATS, NORMALIZE],
        ),
        ({**VIT, "size": {"shortest_edge": 9, "longest_edge": None}, "do_normalize": False}, [Resize(9), FLOATS]),
        ({**VIT, "do_resize": False, "do_rescale": False, "do_normalize": False}, []),
        (
            {**VIT, "do_resize": False, "do_rescale": False, "image_mean": [99, 99, 99], "image_std": [9, 9, 9]},
            [ToDtype("float32"), Normalize([99] * 3, [9] * 3)],
        ),
    ],
)
def test_an_image_processor_becomes_ops(config: dict[str, Any], ops: list[Any], tmp_path: Path) -> None:
    assert from_processor(config) == ops
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(config))
    assert from_processor(tmp_path) == from_processor(str(path)) == ops
    processor = type("Processor", (), {"to_dict": lambda self: config})()
    assert from_processor(processor) == ops


def test_a_nested_image_processor_goes_first(tmp_path: Path) -> None:
    whole = tmp_path / "processor_config.json"
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(CLIP))
    whole.write_text(json.dumps({"processor_class": "LlavaProcessor", "patch_size": 14}))
    assert from_processor(tmp_path) == CLIP_OPS
    whole.write_text(json.dumps({"processor_class": "LlavaProcessor", "image_processor": VIT}))
    whole_processor = SimpleNamespace(image_processor=SimpleNamespace(to_dict=lambda: VIT), to_dict=dict)
    assert from_processor(tmp_path) == from_processor(whole) == from_processor(whole_processor) == from_processor(VIT)


def test_a_processor_that_makes_patches_itself_is_refused() -> None:
    nested = only("GotOcr2ImageProcessor", crop_to_patches=False)
    assert from_processor({"processor_class": "GotOcr2Processor", "image_processor": nested})
    internvl = type("InternVLProcessor", (), {"image_processor": nested})()
    for given in (internvl, {**nested, "processor_class": "InternVLProcessor"}):
        with pytest.raises(InvalidSpec, match="processor_class = 'InternVLProcessor': may cut images into patches"):
            from_processor(given)


@pytest.mark.parametrize(
    "kind",
    [
        "LlavaNextImageProcessor", "Llama4ImageProcessorFast", "Phi4MultimodalImageProcessor", "AriaImageProcessor",
        "LevitFeatureExtractor", "PoolFormerImageProcessor", "PerceiverImageProcessor", "EfficientNetImageProcessor",
        "MobileViTImageProcessor", "Siglip2ImageProcessor", "MyCLIPImageProcessor", "CLIP", None,
    ],
)  # fmt: skip
def test_another_type_is_refused_with_the_ways_out(kind: str | None) -> None:
    said = rf"image_processor_type = {kind!r}: what it does is not known, only .*CLIP, .*as ops .*plug-in"
    with pytest.raises(InvalidSpec, match=said):
        from_processor({**CLIP, "image_processor_type": kind})


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (QWEN, "image_processor_type = 'Qwen2VLImageProcessor'"),
        ({}, "image_processor_type = None"),
        ({"processor_class": "WhisperProcessor", "image_processor": None}, "processor is a NoneType"),
        ([], "processor is a list"),
        ({**VIT, "do_pad": True}, "do_pad = True: cannot be translated for ViT, as it may change pixels"),
        ({**CLIP, "image_grid_pinpoints": [[336, 672]]}, "image_grid_pinpoints = "),
        ({**CLIP, "auto_map": {"AutoImageProcessor": "a.B"}}, "auto_map = "),
        ({**VIT, "do_center_crop": True, "crop_size": 9}, "do_center_crop = True: .*not every release"),
        ({**VIT, "do_normalize": None}, "do_normalize = None: must be true or false"),
        (only("BeitImageProcessor"), "the image processor lacks 'do_center_crop'"),
        (only("PvtImageProcessor"), "the image processor lacks 'resample'"),
        (only("CLIPImageProcessor"), "the image processor lacks 'crop_size'"),
        (only("DPTImageProcessor", ensure_multiple_of=14, keep_aspect_ratio=True), "ensure_multiple_of = 14"),
        ({**VIT, "rescale_factor": 1 / 127.5}, "rescale_factor = .*must be 1/255"),
        ({**VIT, "rescale_offset": True}, "rescale_offset = True"),
        ({**VIT, "resample": 1}, "interpolation = 'lanczos': must be 'bilinear' or 'bicubic'"),
        ({**VIT, "size": {"longest_edge": 9}}, "size = .*must be {'height', 'width'}"),
        ({**VIT, "size": {"shortest_edge": 8, "longest_edge": 9}}, "size = .*must be {'height', 'width'}"),
        ({**CONVNEXT, "size": {"height": 8, "width": 8}}, "size = .*must be {'shortest_edge'} or a number"),
        ({**VIT, "size": None}, "the image processor lacks 'size'"),
        ({**VIT, "image_mean": None}, "the image processor lacks 'image_mean'"),
        ({**VIT, "rescale_factor": "x"}, "the image processor has a value of the wrong type"),
        (3, "processor is a int"),
        ("/no/such/folder", "processor = '/no/such/folder': cannot be read"),
    ],
)
def test_a_processor_that_does_something_else_says_what(config: Any, said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        from_processor(config)


def test_every_type_is_in_the_document() -> None:
    text = AUGMENTATION.partition("## Image processors")[2].partition("\n## ")[0].lower()
    assert [name for name in _TYPES.keys() - {"MobileNetV2"} if name.lower() not in text] == []
