"""What every op has in common: a wire form, and what it does to the shape of an image.

Ops are frozen records of plain values. Their `__init__` takes what torchvision takes and keeps the canonical
form (an int size becomes a pair), so that equal meaning is equal data and the digest of a pipeline means
what it says.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, Self

from prepserver.pipeline.errors import SpecError


@dataclasses.dataclass(frozen=True, slots=True)
class ImageState:
    """What is known of an image between two ops, before any image is seen.

    Attributes:
        size: (height, width) in pixels; None where it differs from sample to sample.
        channels: 3, or 1 after `Grayscale(1)`.
        dtype: Name of the element type: uint8, float16 or float32.
        top: Greatest value that a pixel may have; None once `Normalize` has moved them.
        layout: "CHW" or "HWC" once `ToLayout` has said so, else None.
    """

    size: tuple[int, int] | None = None
    channels: int = 3
    dtype: str = "uint8"
    layout: str | None = None
    top: float | None = 255.0

    def need_uint8(self, op: Op) -> None:
        """Refuse an op that mixes pixel values once they are no longer bytes.

        Raises:
            SpecError: the image is floating point here.
        """
        if self.dtype != "uint8":
            raise SpecError("op", type(op).__name__, "works on uint8: put it before ToDtype")


class Op:
    """A step of a pipeline. Subclasses are frozen dataclasses with their own `__init__`."""

    __slots__ = ()

    def _keep(self, **values: object) -> None:
        """Set the fields of a frozen record, from within `__init__` only."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def shape_after(self, state: ImageState) -> ImageState:
        """Return what is known of the image after this op.

        Raises:
            SpecError: the op cannot follow; the field is the parameter's name.
        """
        return state

    def to_wire(self) -> dict[str, Any]:
        """Return the op as a map of plain values, every parameter spelled out, tuples as lists."""
        wire: dict[str, Any] = {"op": type(self).__name__}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, field.name)
            wire[field.name] = list(value) if isinstance(value, tuple) else value
        return wire

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """Build the op from named parameters that came over the wire.

        Raises:
            SpecError: a parameter is unknown, missing or wrong.
        """
        known = inspect.signature(cls).parameters
        for name, value in params.items():
            if name not in known:
                raise SpecError(name, value, f"{cls.__name__} has no such parameter (it has: {', '.join(known)})")
        for name, parameter in known.items():
            if parameter.default is parameter.empty and name not in params:
                raise SpecError(name, None, f"{cls.__name__} needs it")
        return cls(**params)
