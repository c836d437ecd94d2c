"""The ops for image processors of Hugging Face's transformers, which it does not import: it reads their attributes.

A processor that resizes, crops the centre, rescales and normalizes looks in its file like one that also tiles, or that
scales twice. So only types that are known to do nothing else are translated.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prepclient.errors import InvalidSpec
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import Op
from prepserver.pipeline.ops import CenterCrop, Normalize, Resize, ToDtype

MODES = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}  # Pillow's numbers
_DEFAULTS = {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True}
_WHOLE = {"do_center_crop": False}
_CLIP = {"resample": 3, "do_center_crop": True, "default_to_square": False}
_TYPES: dict[str, dict[str, Any]] = {
    "Beit": {"resample": 3},
    "Bit": _CLIP,
    "Blip": {**_WHOLE, "resample": 3},
    "ChineseCLIP": _CLIP,
    "CLIP": _CLIP,
    "ConvNext": {**_WHOLE, "default_to_square": False, "crop_pct": 224 / 256},
    "DeiT": {"resample": 3, "do_center_crop": True},
    "DPT": {**_WHOLE, "resample": 3},
    "Gemma3": {**_WHOLE, "resample": 2},
    "GotOcr2": {**_WHOLE, "resample": 3},
    "Llava": _CLIP,
    "MobileNetV1": {**_CLIP, "resample": 2},
    "MobileNetV2": {**_CLIP, "resample": 2},
    "Pvt": _WHOLE,
    "Segformer": {**_WHOLE, "resample": 2},
    "Siglip": {**_WHOLE, "resample": 3, "default_to_square": False},
    "ViT": {**_WHOLE, "resample": 2},
}
"""What each does where its file says nothing; a value on which releases of transformers differ must be in the file.
With `_WHOLE` some releases ignore `do_center_crop`."""
_READ = {"size", "resample", "do_center_crop", "crop_size", "image_mean", "image_std", "default_to_square"}
_NO_PIXELS = {
    "image_processor_type", "feature_extractor_type", "processor_class", "_processor_class", "_valid_processor_keys",
    "do_convert_rgb", "input_data_format", "return_tensors", "device", "disable_grouping", "image_seq_length",
    "do_reduce_labels", "reduce_labels",  # of segmentation maps
    "pad_size", "size_divisor", "min_patches", "max_patches",  # of steps that are refused
    "pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops", "pan_and_scan_min_ratio_to_activate",
}  # fmt: skip
_NO_CHANGE = {"data_format": "channels_first", "ensure_multiple_of": 1}


def from_processor(processor: Mapping[str, Any] | str | os.PathLike[str] | Any) -> list[Op]:
    """The ops that do what an image processor of Hugging Face's transformers does.

    It translates resizing, centre crops, rescaling and normalizing of the types that docs/augmentation.md lists.

    Args:
        processor: An image processor, or a processor that has one; the path of a ``preprocessor_config.json``, of a
            ``processor_config.json`` or of their folder; or the content of such a file as a dict.

    Raises:
        InvalidSpec: The processor has another type, another step, or a value that ops do not support, or lacks a value.
    """
    given = _config(processor)
    kind = given.get("image_processor_type") or given.get("feature_extractor_type")
    name = re.fullmatch(r"(\w+?)(ImageProcessor|FeatureExtractor)(Fast|Pil)?", str(kind))
    if name is None or name[1] not in _TYPES:
        raise InvalidSpec(
            f"image_processor_type = {kind!r}: what it does is not known, only what image processors of these types "
            f"do: {', '.join(_TYPES)}. Write its steps as ops (docs/augmentation.md) or as a plug-in (docs/plugins.md)",
            "image_processor_type",
        )
    try:
        _check(name[1], given)
        defaults = {**_DEFAULTS, **_TYPES[name[1]]}
        # Null is the default. In place of a true one it is refused below: it may mean no, too.
        config = {**defaults, **{key: value for key, value in given.items() if value is not None or defaults.get(key)}}
        return [*_sizes(name[1], config), *_values(config)]
    except SpecError as error:
        raise InvalidSpec(f"the image processor's {error}", error.field) from error
    except KeyError as error:
        raise InvalidSpec(f"the image processor lacks {error}", str(error.args[0])) from error
    except (TypeError, ArithmeticError) as error:
        raise InvalidSpec(f"the image processor has a value of the wrong type: {error}", "processor") from error


def _config(processor: Any) -> Mapping[str, Any]:
    if isinstance(processor, str | os.PathLike):
        path = Path(processor)
        try:
            processor = _content(path)
        except (OSError, ValueError) as error:
            raise InvalidSpec(f"processor = {str(path)!r}: cannot be read as JSON: {error}", "processor") from error
    if isinstance(processor, Mapping):
        owner, found = processor.get("processor_class"), processor.get("image_processor", processor)
    else:
        owner, found = type(processor).__name__, getattr(processor, "image_processor", processor)
    config = found.to_dict() if hasattr(found, "to_dict") else found
    if not isinstance(config, Mapping):
        raise InvalidSpec(f"processor is a {type(found).__name__}: a map, a path or an image processor", "processor")
    return config if found is processor else {**config, "processor_class": owner}


def _content(path: Path) -> Any:
    """What transformers reads: the nested image processor, if there is one, goes first."""
    if path.is_dir():
        whole = path / "processor_config.json"
        if whole.exists() and isinstance(found := json.loads(whole.read_bytes()), dict) and "image_processor" in found:
            return found
        path = path / "preprocessor_config.json"
    return json.loads(path.read_bytes())


def _check(name: str, given: Mapping[str, Any]) -> None:
    """Refuse what may change pixels and is not translated."""
    known = _DEFAULTS.keys() | _TYPES[name] | _READ | _NO_PIXELS
    for key, value in given.items():
        if not (key in known or value is None or value is False or _NO_CHANGE.get(key) == value):
            raise SpecError(key, value, f"cannot be translated for {name}, as it may change pixels")
    if given.get("do_center_crop") and _TYPES[name].get("do_center_crop") is False:
        raise SpecError("do_center_crop", True, f"cannot be translated for {name}: not every release does it")
    owner = given.get("processor_class")
    if name == "GotOcr2" and owner not in (None, "GotOcr2Processor"):
        raise SpecError("processor_class", owner, "may cut images into patches, whatever this type says")  # InternVL


def _sizes(name: str, config: Mapping[str, Any]) -> list[Op]:
    ops: list[Op] = []
    if _does("do_resize", config):
        mode = config["resample"]
        mode = MODES.get(mode, mode) if isinstance(mode, int) else mode
        size = _size("size", config, config.get("default_to_square", True))
        if name == "ConvNext":
            if isinstance(size, tuple):
                raise SpecError("size", config["size"], "must be {'shortest_edge'} or a number")
            if size < 384:
                return [Resize(int(size / (config["crop_pct"] or 224 / 256)), mode), CenterCrop(size)]
            size = (size, size)
        ops.append(Resize(size, mode))
    return [*ops, CenterCrop(_size("crop_size", config, True))] if _does("do_center_crop", config) else ops


def _does(step: str, config: Mapping[str, Any]) -> bool:
    does = config[step]
    if not isinstance(does, bool):
        raise SpecError(step, does, "must be true or false")
    return does


def _size(field: str, config: Mapping[str, Any], square: bool) -> Any:
    """The length of the shorter side, or (height, width)."""
    size = config[field]
    if isinstance(size, Mapping):
        sides = {key: value for key, value in size.items() if value is not None}
        if sides.keys() == {"shortest_edge"}:
            return sides["shortest_edge"]
        if sides.keys() == {"height", "width"}:
            return sides["height"], sides["width"]
    elif isinstance(size, int):
        return (size, size) if square else size
    raise SpecError(field, size, "must be {'height', 'width'}, {'shortest_edge'} or a number")


def _values(config: Mapping[str, Any]) -> list[Op]:
    rescales, normalizes = _does("do_rescale", config), _does("do_normalize", config)
    if rescales and abs(config["rescale_factor"] * 255 - 1) > 1e-6:
        raise SpecError("rescale_factor", config["rescale_factor"], "must be 1/255")
    ops: list[Op] = [ToDtype("float32", scale=rescales)] if rescales or normalizes else []
    return [*ops, Normalize(config["image_mean"], config["image_std"])] if normalizes else ops
