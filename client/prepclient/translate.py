"""Translates transforms of torchvision and timm into lists of ops.

It imports none of them: it knows a transform by its class's module and name, and reads the parameters from its
attributes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from prepclient.equivalents import is_of
from prepclient.errors import InvalidSpec
from prepclient.translate_processor import MODES
from prepclient.translate_timm import INSTEAD_OF_TIMM, TIMM_OPS
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import Op
from prepserver.pipeline.ops import (
    OPS,
    ClampBoxes,
    ConvertBoxes,
    LinearTransformation,
    RandomIoUCrop,
    SanitizeBoxes,
    ToDtype,
)

_SEQUENCES = ("Compose", "Sequential", "ModuleList")
_NOTHING = ("Identity", "PILToTensor", "RGB", "ToImage", "ToPureTensor")
"""They need no op: images are decoded to RGB, and batches are tensors."""
_TO_FLOATS = ("ToTensor", "ConvertImageDtype")
_CONVERSIONS: dict[str, list[Op]] = {"ToTensor": [ToDtype("float32", scale=True)], "PILToTensor": []}
"""Those of torchvision that other libraries adapt."""
_CALLED = ("__call__", "forward", "transform")
_NONE = "prepserver has no op that does the same"
_IGNORED = ("inplace",)
_BOXES: dict[str, Callable[[Any], Op]] = {
    "RandomIoUCrop": lambda given: RandomIoUCrop(
        given.min_scale, given.max_scale, given.min_aspect_ratio, given.max_aspect_ratio, given.options, given.trials
    ),
    "SanitizeBoundingBoxes": lambda given: SanitizeBoxes(given.min_size, given.min_area),
    "ClampBoundingBoxes": lambda given: ClampBoxes(),
    "ConvertBoundingBoxFormat": lambda given: ConvertBoxes(str(getattr(given.format, "name", given.format)).lower()),
}
"""By torchvision's names."""


def from_torchvision(transform: object) -> list[Op]:
    """The ops that do what a transform of torchvision does.

    They have the same parameters and the same meaning, but draw other random numbers. docs/augmentation.md lists the
    transforms that can be translated.

    Args:
        transform: A transform of ``torchvision.transforms`` or ``torchvision.transforms.v2``, such as a ``Compose``,
            or a list of them. What timm's ``create_transform`` returns is such a ``Compose``.

    Raises:
        InvalidSpec: A transform has no equivalent, or a parameter has a value that the op does not support. The error
            names the place of the first one, and says how to make it a plug-in.
    """
    return _ops("transform", transform)


def _ops(field: str, transform: Any) -> list[Op]:
    kind = type(transform)
    name = kind.__name__
    if isinstance(transform, Op):
        return [transform]
    if isinstance(transform, list | tuple):
        return _in_order(field, transform)
    if name in _SEQUENCES and (is_of("torchvision", transform) or kind.__module__.startswith("torch.")):
        return _in_order(f"{field}.transforms", getattr(transform, "transforms", transform))
    try:
        if is_of("torchvision", transform):
            return _of_torchvision(field, transform)
        if (converted := _converted(kind)) is not None:
            return converted
        if is_of("timm", transform):
            return [_of_timm(field, transform)]
    except SpecError as error:
        raise _refused(f"{field}.{error.field}", transform, f"{error.value!r} {error.reason}") from error
    raise _refused(field, transform, "it is no transform of torchvision")


def _of_torchvision(field: str, transform: Any) -> list[Op]:
    name = type(transform).__name__
    if name in _NOTHING:
        return []
    if name in _TO_FLOATS:
        return [ToDtype(getattr(transform, "dtype", "float32"), scale=True)]
    if name in _BOXES:
        return [_BOXES[name](transform)]
    if name in OPS:
        return [_same(field, transform, OPS[name])]
    raise _refused(field, transform, _NONE)


def _converted(kind: type) -> list[Op] | None:
    """The ops for another library's class that converts as one of torchvision's; None for any other class.

    It is timm's, or a subclass: one that leaves tensors alone is called ``Maybe...``, others must override nothing.
    """
    bases = [each for each in kind.__mro__ if each.__module__.startswith("torchvision.")]
    for name, ops in _CONVERSIONS.items():
        base = next((each for each in bases if each.__name__ == name), None)
        if kind.__name__ == f"Maybe{name}" and (base or kind.__module__.startswith("timm.")):
            return list(ops)
        if base and all(getattr(kind, each, None) is getattr(base, each, None) for each in _CALLED):
            return list(ops)
    return None


def _of_timm(field: str, transform: Any) -> Op:
    name = type(transform).__name__
    if name in INSTEAD_OF_TIMM:
        raise InvalidSpec(f"{field} (timm's {name}): {INSTEAD_OF_TIMM[name]}", field)
    if name not in TIMM_OPS:
        raise _refused(field, transform, _NONE)
    try:
        return TIMM_OPS[name](transform)
    except AttributeError as error:
        raise _refused(f"{field}.{error.name}", transform, "this release of timm keeps no such attribute") from error


def _in_order(field: str, transforms: Iterable[object]) -> list[Op]:
    return [op for place, each in enumerate(transforms) for op in _ops(f"{field}[{place}]", each)]


def _same(field: str, transform: Any, op: type[Op]) -> Op:
    """The op of the same name, with its parameters from the attributes of the same names."""
    if op is LinearTransformation:
        raise InvalidSpec(
            f"{field} (LinearTransformation): ops are data, so its tensors must lie in files that the daemon can read: "
            "numpy.save('/data/matrix.npy', transform.transformation_matrix.numpy()), "
            "numpy.save('/data/mean.npy', transform.mean_vector.numpy()), and "
            "prepclient.LinearTransformation('/data/matrix.npy', '/data/mean.npy') in its place",
            field,
        )
    ours, theirs = inspect.signature(op).parameters, inspect.signature(type(transform)).parameters
    values: dict[str, Any] = {}
    for name in ours:
        if name in _IGNORED or (name in ("antialias", "cover") and name not in theirs):
            continue
        if name == "mask_fill":
            if isinstance(fill := getattr(transform, "fill", None), Mapping):
                values[name] = _fill_of("Mask", field, transform, fill)
            continue
        if not hasattr(transform, name):
            raise _refused(f"{field}.{name}", transform, "this release of torchvision keeps no such attribute")
        values[name] = _value(field, transform, name, getattr(transform, name))
    for name, parameter in theirs.items():
        if name not in ours and name not in _IGNORED and getattr(transform, name, None) != parameter.default:
            raise _refused(
                f"{field}.{name}", transform, f"prepserver's {type(transform).__name__} has no such parameter"
            )
    return op(**values)


def _value(field: str, transform: Any, name: str, value: Any) -> Any:
    """The value of our parameter for the value of torchvision's attribute."""
    kind = type(transform).__name__
    if name == "transforms":
        return [_one(f"{field}.transforms[{place}]", each) for place, each in enumerate(value)]
    if name == "fill" and isinstance(value, Mapping):
        value = _fill_of("Image", field, transform, value)
    elif isinstance(value, Mapping):
        raise _refused(f"{field}.{name}", transform, "a value for each type of data is not supported")
    if name == "interpolation" and isinstance(value, int) and not isinstance(value, Enum):
        return MODES.get(value, value)
    if name == "antialias":
        return value is not False  # None and "warn" antialias PIL images
    if type(value).__module__ == "torch" and hasattr(value, "numpy"):
        return [float(str(each)) for each in value.numpy().flat]  # 0.485, not 0.48500001430511475
    if value is None and kind == "ColorJitter":
        return 0 if name == "hue" else (1.0, 1.0)
    if value is None and kind == "RandomErasing" and name == "value":
        return "random"
    if kind == "RandomCrop" and name == "padding" and value and ".v2" in type(transform).__module__:
        left, right, top, bottom = value  # the order in v2's attribute
        return [left, top, right, bottom]
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _fill_of(kind: str, field: str, transform: Any, fills: Mapping[Any, Any]) -> Any:
    """The fill of a type of data, else that of all others, else 0, as in torchvision."""
    named = {getattr(key, "__name__", key): value for key, value in fills.items()}
    if not named.keys() <= {"Image", "Mask", "others"}:
        raise _refused(f"{field}.fill", transform, 'only Image, Mask and "others" may have a fill')
    others = getattr(fills, "default_factory", None) or int  # of a defaultdict: torchvision 0.28 forgets it
    return named.get(kind, named.get("others", others())) or 0


def _one(field: str, transform: object) -> Op:
    found = _ops(field, transform)
    if len(found) != 1:
        raise _refused(field, transform, f"it is {len(found)} ops here, but this place takes one: write them out")
    return found[0]


def _refused(field: str, transform: object, why: str) -> InvalidSpec:
    name = type(transform).__name__
    if name in ("MixUp", "CutMix"):
        reason = f"it mixes the samples of a batch: leave it out here, and pass device_ops=[{name}(...)] to PrepClient"
        return InvalidSpec(f"{field} ({name}): {reason} (docs/device-ops.md)", field)
    if is_of("torchvision", transform) and name in (*OPS, *_BOXES, *_TO_FLOATS, *_SEQUENCES, *_NOTHING):
        return InvalidSpec(f"{field} ({name}): {why}. Write it with prepclient's ops (docs/augmentation.md)", field)
    return InvalidSpec(
        f"{field} ({name}): {why}. Apply it to the batches, or make it a plug-in: a function of an array and a "
        f'generator that the daemon loads, with PluginOp("{name.lower()}") in its place (docs/plugins.md)',
        field,
    )
