"""What every op has in common: a wire form, and what it does to what is known of a record.

Ops are frozen records of plain values. Their `__init__` takes what torchvision takes and keeps the canonical
form (an int size becomes a pair), so that equal meaning is equal data and the digest of a pipeline means
what it says.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from prepserver.pipeline.declared import Codes
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image, Kind, Size, Spatial
from prepserver.pipeline.record import Record


class Op:
    """A step of a pipeline. Subclasses are frozen dataclasses with their own `__init__`.

    Attributes:
        moves: Whether it moves pixels, and with them all that lies on the same plane.
        names_column: Whether it says itself which column it changes.
    """

    __slots__ = ()
    moves: ClassVar[bool] = False
    names_column: ClassVar[bool] = False

    def _keep(self, **values: object) -> None:
        """Set the fields of a frozen record, from within `__init__` only."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def image_after(self, image: Image) -> Image:
        """Return what is known of an image after this op, apart from its size.

        Raises:
            SpecError: the op cannot follow; the field is the parameter's name.
        """
        return image

    def size_after(self, size: Size | None) -> Size | None:
        """Return the size after this op of whatever lies on a plane of pixels; None where it differs by sample.

        Raises:
            SpecError: the op cannot follow; the field is the parameter's name.
        """
        return size

    def after(self, record: Record) -> Record:
        """Return what is known of a record after this op. Columns of kinds that it does not touch stay as they are.

        Raises:
            SpecError: the op cannot follow; the field is the parameter's name.
        """
        return {name: self.kind_after(kind) for name, kind in record.items()}

    def kind_after(self, kind: Kind) -> Kind:
        """Return what is known of one column after this op.

        Raises:
            SpecError: the op cannot follow; the field is the parameter's name.
        """
        if isinstance(kind, Image):
            kind = self.image_after(kind)
        return dataclasses.replace(kind, size=self.size_after(kind.size)) if isinstance(kind, Spatial) else kind

    def with_code(self, codes: Codes) -> Self:
        """Return the op with the digest of the code that does it, where that is a plug-in's.

        Raises:
            SpecError: The plug-in is not loaded, or has other code.
        """
        return self

    def to_wire(self) -> dict[str, Any]:
        """Return the op as a map of plain values, every parameter spelled out, tuples as lists."""
        wire: dict[str, Any] = {"op": type(self).__name__}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, field.name)
            wire[field.name] = (
                value.to_wire() if isinstance(value, Op) else list(value) if isinstance(value, tuple) else value
            )
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
