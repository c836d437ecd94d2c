"""The form of a batch: arranges a step's columns as `fields`, `collate`, `on_error` and `output` ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch

from prepclient.errors import BadSampleError, InvalidSpec, UnknownField
from prepclient.steps import VALID, Step, valid_rows
from prepserver.pipeline.checks import choice
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import BoxCount, Boxes, Image
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import INDEX

Fields = Literal["tuple", "dict"] | Sequence[str]
OnError = Literal["raise", "skip", "mask"]
Output = Literal["torch", "numpy", "jax"]


class Form:
    """The form of a client's batches; see `PrepClient` for the arguments.

    Raises:
        UnknownField: `fields` names a field that batches do not have.
        InvalidSpec: An argument is invalid, or does not fit the pipeline.
    """

    def __init__(self, pipeline: Pipeline, fields: object, collate: object, on_error: object) -> None:
        choice("on_error", on_error, ("raise", "skip", "mask"))
        choice("collate", collate, ("batch", "list"))
        self._raises, self.has_valid = on_error == "raise", on_error == "mask"
        self._names = _names_of(fields, pipeline, has_valid=self.has_valid)  # None for a dict of all fields
        self._targets = _Targets(pipeline, self._names) if collate == "list" else None
        # columns that have one number for each of several views, with the names of the fields that hold these
        self._number_per_view: dict[str, list[str]] = {}
        for field in pipeline.fields:
            if pipeline.views > 1 and field.kind.is_spatial and not field.shape:
                self._number_per_view.setdefault(field.column, []).append(field.name)

    def __call__(self, step: Step) -> Any:
        """The batch, made of tensors; or a `BadSampleError` in its place."""
        if step.bad and self._raises:
            return BadSampleError(step.bad[0].index, step.bad[0].reason)
        fields = step.fields
        if self.has_valid and VALID not in fields:
            fields[VALID] = valid_rows(step.batch, step.bad)
        for column, views in self._number_per_view.items():
            fields[column] = tuple([fields.pop(view) for view in views])
        if self._targets is not None:
            return self._targets(fields)
        return fields if self._names is None else tuple(fields[name] for name in self._names)


def _names_of(fields: object, pipeline: Pipeline, *, has_valid: bool) -> tuple[str, ...] | None:
    columns = list(dict.fromkeys(each.column for each in pipeline.fields if each.column != INDEX))
    if isinstance(fields, str) and fields in ("dict", "tuple"):
        names = (*columns, VALID) if has_valid else tuple(columns)
        return names if fields == "tuple" else None
    if isinstance(fields, str) or not isinstance(fields, Sequence) or not fields:
        raise SpecError("fields", fields, "'tuple', 'dict', or a sequence of names in the order you want")
    known = (*columns, INDEX, VALID)
    for name in fields:
        if name == VALID and not has_valid:
            raise UnknownField("fields names 'valid', which only on_error='mask' gives", "fields")
        if name not in known:
            text = f"fields names {name!r}, which no batch has; known fields: {', '.join(known)}"
            raise UnknownField(text, "fields")
    return tuple(fields)


class _Targets:
    """Splits a batch into what torchvision's detection models take: images, and targets without padding."""

    def __init__(self, pipeline: Pipeline, names: Sequence[str] | None) -> None:
        counts = [field.name for field in pipeline.fields if isinstance(field.kind, BoxCount)]
        images = [field.name for field in pipeline.fields if isinstance(field.kind, Image)]
        if len(counts) != 1 or len(images) != 1 or (names is not None and images[0] not in names):
            text = "collate = 'list': needs one image of each sample, one view of it, and boxes with PadBoxes(n)"
            raise InvalidSpec(text, "collate")
        self._count, self._image, self._names = counts[0], images[0], names
        self._per_box = {
            field.name for field in pipeline.fields if field.kind.is_per_box or isinstance(field.kind, Boxes)
        }

    def __call__(self, fields: dict[str, Any]) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
        """The images of a batch, and for each a dict of its other columns; all are views."""
        names = [name for name in self._names or fields if name not in (self._count, self._image)]
        counts = fields[self._count].tolist()  # waits for the device
        targets = [
            {name: fields[name][row][:count] if name in self._per_box else fields[name][row] for name in names}
            for row, count in enumerate(counts)
        ]
        return list(fields[self._image]), targets


# -- arrays of another library, over the batch's memory --------------------------------------------------

Convert = Callable[[Any], Any]


def converter(output: Output, device: torch.device, dtypes: Sequence[torch.dtype], *, zero_copy: bool) -> Convert:
    """The function that makes a batch of arrays from a batch of tensors.

    Raises:
        InvalidSpec: The library is missing, or its arrays do not support the device, one of the `dtypes`, or
            `zero_copy`.
    """
    choice("output", output, ("torch", "numpy", "jax"))
    if output == "numpy":
        if device.type != "cpu":
            raise SpecError("output", output, f"numpy's arrays are in host memory: leave out device = {str(device)!r}")
        if torch.bfloat16 in dtypes:
            raise SpecError("output", output, "numpy has no bfloat16: ask for torch.float16 or torch.float32")
        return partial(_converted, convert=_read_only if zero_copy else torch.Tensor.numpy)
    if output == "jax":
        if zero_copy:
            reason = "jax computes in the background, and may read lent memory too late: leave out zero_copy"
            raise SpecError("output", output, reason)
        return partial(_converted, convert=_of_jax())
    return lambda batch: batch


def _converted(batch: Any, convert: Convert) -> Any:
    """The batch with every tensor converted; a batch is a tensor, or tuples, lists and dicts of them."""
    if isinstance(batch, torch.Tensor):
        return convert(batch)
    if isinstance(batch, dict):
        return {name: _converted(each, convert) for name, each in batch.items()}
    return type(batch)(_converted(each, convert) for each in batch)


def _read_only(tensor: torch.Tensor) -> Any:
    """An array that refuses writes: the ring is mapped read-only, so a write would end the process."""
    array = tensor.numpy()
    array.flags.writeable = False
    return array


def _of_jax() -> Convert:
    try:
        from jax import dlpack
    except ImportError as e:
        text = f"output = 'jax' needs jax, which cannot be imported ({e}): pip install jax, or 'jax[cuda12]' for a GPU"
        raise InvalidSpec(text, "output") from e
    return lambda tensor: dlpack.from_dlpack(tensor if _is_dense(tensor) else tensor.contiguous())


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie side by side, in any order of dimensions: those that `PadTokens` trims do not."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return not tensor.numel() or 1 + sum((side - 1) * stride for side, stride in pairs) == tensor.numel()
