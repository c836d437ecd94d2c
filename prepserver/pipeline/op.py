"""What every op has in common: what it does to what is known of a record."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Boxes, Image, Kind, Size, Spatial
from prepserver.pipeline.record import Record
from prepserver.pipeline.source import check_absolute
from prepserver.pipeline.spec import Spec


class Op(Spec):
    """A step of a pipeline.

    Each method raises `SpecError` where the op cannot follow what comes before it; the error's field is the parameter.

    Attributes:
        moves: The op moves pixels, and with them everything on the same plane.
        needs_uint8: The op mixes pixel values, which must still be bytes.
        is_fixed: What the op makes of an image depends on the image alone and is again uint8, so a cache may hold it.
        views: How many views of a sample it makes; 0 for as many as there are.
        partners: How many other samples it mixes with each; which ones follows from the sample, the pass and the view.
        nests: The op can be part of another op: it names no column by itself, and a stage does it.
        paths: Parameters that are paths of files on the daemon's machine. What such a file holds is part of what the op
            is; the parameter ``code`` has its digest, see `Spec.with_code`.
    """

    __slots__ = ()
    wire_key = "op"
    moves: ClassVar[bool] = False
    needs_uint8: ClassVar[bool] = False
    is_fixed: ClassVar[bool] = False
    views: ClassVar[int] = 0
    partners: ClassVar[int] = 0
    nests: ClassVar[bool] = True
    paths: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """As `Spec.from_params`; paths must be absolute."""
        check_absolute(cls.paths, params)
        return super().from_params(params)

    def image_after(self, image: Image) -> Image:
        """Return what is known of an image after this op, apart from its size. A `fill` of the op must suit it."""
        if (fill := getattr(self, "fill", None)) is not None:
            checks.fill_fits(fill, image.channels, image.dtype)
        return image

    def size_after(self, size: Size | None) -> Size | None:
        """Return the size of a plane of pixels after this op; None where it differs from sample to sample."""
        return size

    def after(self, record: Record) -> Record:
        """Return what is known of a record after this op. Columns of kinds that it does not touch stay as they are.

        Raises:
            SpecError: It touches none: a mistake that would go unnoticed, such as a crop of an array of pixels.
        """
        if not any(kind.is_spatial for kind in record.values()):
            there = ", ".join(f"{name} ({type(kind).__name__})" for name, kind in record.items())
            reason = (
                f"needs an image or a mask; a sample has {there}. Columns of a table are images where columns= says so"
            )
            raise SpecError("op", type(self).__name__, reason)
        return {name: self.kind_after(kind) for name, kind in record.items()}

    @property
    def trims(self) -> Mapping[str, str]:
        """Columns whose rows a batch cuts to the longest in it, and the column that says how long each is."""
        return {}

    @property
    def copies(self) -> Mapping[str, str]:
        """New columns that are as long as another one, by name."""
        return {}

    def kind_after(self, kind: Kind) -> Kind:
        """Return what is known of one column after this op."""
        if isinstance(kind, Image):
            if self.needs_uint8 and kind.dtype != "uint8":
                raise SpecError("op", type(self).__name__, "works on uint8: put it before ToDtype")
            kind = self.image_after(kind)
        if self.moves and isinstance(kind, Boxes):
            _check_plain(self, kind)
        return dataclasses.replace(kind, size=self.size_after(kind.size)) if isinstance(kind, Spatial) else kind


class BoxOp(Op):
    """A step that changes the boxes of a record, and what there is for each of them.

    Attributes:
        takes_any_form: It may follow `ConvertBoxes`.
    """

    __slots__ = ()
    nests = False
    takes_any_form: ClassVar[bool] = False

    def after(self, record: Record) -> Record:
        """As `Op.after`."""
        for kind in record.values():
            if isinstance(kind, Boxes):
                if not self.takes_any_form:
                    _check_plain(self, kind)
                return super().after(record)
        raise SpecError("op", type(self).__name__, f"needs boxes; a sample has {', '.join(record)}")


def _check_plain(op: Op, boxes: Boxes) -> None:
    if (boxes.form, boxes.normalized) != ("xyxy", False):
        raise SpecError("op", type(op).__name__, "cannot follow ConvertBoxes: put that after all ops that change boxes")
