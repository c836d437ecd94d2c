"""The base of ops: how an op changes what is known of a record."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

from prepserver.pipeline import checks
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Array, Boxes, Image, Kind, Mask, Scalar, Size, Spatial
from prepserver.pipeline.record import Columns, renamed, shown
from prepserver.pipeline.spec import FILE, Codes, Spec, digest_of

MAX_FILE_BYTES = 256 << 20  # limit on a file that an op reads: each worker keeps its content in memory


class Op(Spec):
    """A step of a pipeline.

    Each method raises `SpecError` where the op cannot follow what comes before it; the error's field is the parameter.
    """

    wire_key = "op"
    moves: ClassVar[bool] = False  # the op moves pixels, and with them everything on the same plane
    # The size of its result differs from sample to sample, even if all images had one size before it.
    varies: ClassVar[bool] = False
    needs_uint8: ClassVar[bool] = False  # the op mixes colours: bytes of 1 or 3 channels
    # Its result depends on the image alone and is again uint8, so a cache may hold it.
    is_fixed: ClassVar[bool] = False
    views: ClassVar[int] = 0  # how many views of a sample it makes; 0 for as many as there are
    # How many other samples it mixes with each; which ones follows from the sample, the pass and the view.
    partners: ClassVar[int] = 0
    nests: ClassVar[bool] = True  # the op may be part of another op: it names no column, and has a stage
    unwritten: ClassVar[tuple[tuple[str, object], ...]] = (("mask_fill", None),)

    @property
    def moves_one(self) -> bool:
        """Whether it moves the pixels of one column, and leaves all other columns alone."""
        return False

    @property
    def files(self) -> list[str]:
        """Paths of the files that it reads."""
        return [path for name in self.paths if isinstance(path := getattr(self, name), str)]

    def image_after(self, image: Image) -> Image:
        """Return what is known of an image after this op, apart from its size. A `fill` of the op must suit it."""
        if (fill := getattr(self, "fill", None)) is not None:
            checks.fill_fits(fill, image.channels, image.dtype)
        return image

    def size_after(self, size: Size | None) -> Size | None:
        """Return the size of a plane of pixels after this op; None where it differs from sample to sample."""
        return None if self.varies else size

    def after(self, columns: Columns) -> Columns:
        """Return what is known of a record after this op. Columns of kinds that it does not touch stay as they are.

        Raises:
            SpecError: It touches none, or a mask and not the pixels that it belongs to: mistakes that would go
                unnoticed, such as a crop of an array of pixels.
        """
        if not any(kind.is_spatial for kind in columns.values()):
            reason = "Columns of a table are images where columns= says so"
            reason = f"needs an image or a mask; a sample has {shown(columns)}. {reason}"
            raise SpecError("op", type(self).__name__, reason)
        if self.moves and not any(isinstance(kind, Image) for kind in columns.values()):
            sizes = {kind.size for kind in columns.values() if isinstance(kind, Mask)}
            for name, kind in columns.items():
                if isinstance(kind, Array) and kind.shape and sizes & {kind.shape[-2:], kind.shape[:2]}:
                    reason = f"would move the mask and leave {name} as it is: declare {name} as a kinds.Image"
                    raise SpecError("op", type(self).__name__, reason)
        return {name: self.kind_after(kind) for name, kind in columns.items()}

    @property
    def looks(self) -> int:
        """How many ops `after` looks at: itself, or those that it holds, in all orders that it tries."""
        return 1

    @property
    def trims(self) -> Mapping[str, str]:
        """Columns that a batch trims to its longest row, each with the column of its lengths."""
        return {}

    @property
    def copies(self) -> Mapping[str, str]:
        """New columns that are as long as another one, by name."""
        return {}

    def kind_after(self, kind: Kind) -> Kind:
        """Return what is known of one column after this op."""
        if isinstance(kind, Image):
            if self.needs_uint8 and kind.dtype != "uint8":
                reason = f"works on uint8: put it before ToDtype. The image is {kind.dtype} here"
                raise SpecError("op", type(self).__name__, reason)
            if self.needs_uint8 and kind.channels not in (1, 3):
                reason = f"works on 1 or 3 channels, and the image has {kind.channels}"
                raise SpecError("op", type(self).__name__, reason)
            kind = self.image_after(kind)
        if self.moves and isinstance(kind, Boxes):
            _check_plain(self, kind)
        if isinstance(kind, Mask) and kind.dtype == "uint8" and (fill := getattr(self, "mask_fill", None) or 0) > 255:
            raise SpecError("mask_fill", fill, 'is above 255, and the mask is uint8: kinds.Mask(dtype="uint16")')
        return dataclasses.replace(kind, size=self.size_after(kind.size)) if isinstance(kind, Spatial) else kind


class FileOp(Op):
    """A step that reads files, whose content is part of the op's identity."""

    nests = False
    code: str  # digest of their content, see `code_of`; empty for their content when the job attaches

    def with_code(self, codes: Codes) -> Self:
        """As `Spec.with_code`, once the files have been read."""
        digests = [codes.get((FILE, path)) for path in self.files]
        if not all(digests):
            return self
        found = code_of([each for each in digests if each])
        if self.code not in ("", found):
            reason = f"is not the content of {' and '.join(self.files)}, which is {found}"
            raise SpecError("code", self.code, reason)
        return self.replaced(code=found)


def code_of(digests: Sequence[str]) -> str:
    """Return the code of an op by the digests of its files, in the order of `Op.files`."""
    return digests[0] if len(digests) == 1 else digest_of(list(digests))


class ChanceOp(Op):
    """An op that acts with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = checks.probability(p)


class CropOp(Op):
    """An op that makes images of one size, by cropping and perhaps padding or resizing."""

    moves = True

    def __init__(self, size: checks.IntOrInts) -> None:
        self.size = checks.size("size", size)

    def size_after(self, size: Size | None) -> Size | None:
        """As `Op.size_after`."""
        return self.size


class ResizeOp(Op):
    """An op that resizes; unless it overrides `size_after`, to another size for each sample."""

    moves = True
    varies = True

    def __init__(self, interpolation: checks.Interpolation, antialias: bool) -> None:
        checks.antialias(antialias)
        self.interpolation = checks.interpolation("interpolation", interpolation)


class WarpOp(Op):
    """An op that interpolates between pixels, and has a fill for what lies beyond the image's edges."""

    moves = True

    def __init__(
        self, interpolation: checks.Interpolation, fill: checks.FloatOrFloats | None, mask_fill: int | None
    ) -> None:
        self.interpolation = checks.interpolation("interpolation", interpolation, checks.WARPS)
        self.fill = checks.fill("fill", fill)
        self.mask_fill = checks.mask_fill(mask_fill)


class BoxOp(Op):
    """A step that changes boxes, and the values that belong to them."""

    nests = False
    takes_any_form: ClassVar[bool] = False  # it may follow `ConvertBoxes`

    def after(self, columns: Columns) -> Columns:
        """As `Op.after`."""
        for kind in columns.values():
            if isinstance(kind, Boxes):
                if not self.takes_any_form:
                    _check_plain(self, kind)
                return super().after(columns)
        raise SpecError("op", type(self).__name__, f"needs boxes; a sample has {', '.join(columns)}")


class PadOp(Op):
    """An op that fills values of one column up to one size, and says how much of it was there."""

    nests = False

    def __init__(self, column: str, mask: str | None, count: str | None, trim: bool) -> None:
        if checks.flag("trim", trim) and count is None:
            count = "length"
        self.mask = None if mask is None else checks.name("mask", mask)
        self.count = None if count is None else checks.name("count", count)
        self.column = checks.name("column", column)
        self.trim = trim

    def with_column(self, columns: Columns, filled: Kind, length: int) -> Columns:
        """Return the columns with the filled one, and those that say how much of its `length` was there."""
        made: dict[str, Kind] = {self.column: filled}
        beside: tuple[tuple[str, Kind], ...] = (
            ("mask", Array((length,), "uint8", beside=self.column)),
            ("count", Scalar("int64", beside=self.column)),
        )
        for field, kind in beside:
            if (name := getattr(self, field)) in made:
                raise SpecError(field, name, "is the name of another column")
            if name is not None:
                made[name] = kind
        named = {name: field for field, _ in beside if (name := getattr(self, field)) is not None}
        return renamed(columns, self.column, made, named)

    @property
    def trims(self) -> Mapping[str, str]:
        """As `Op.trims`."""
        if not self.trim or self.count is None:
            return {}
        return {name: self.count for name in (self.column, self.mask) if name is not None}


class MixOp(Op):
    """An op that makes one sample of several: `partners` says how many others."""

    moves = True
    nests = False

    def kind_after(self, kind: Kind) -> Kind:
        """As `Op.kind_after`."""
        if isinstance(kind, Boxes) and kind.count is not None:
            raise SpecError("op", type(self).__name__, "cannot follow PadBoxes: put that after it")
        return super().kind_after(kind)


def _check_plain(op: Op, boxes: Boxes) -> None:
    if (boxes.form, boxes.normalized) != ("xyxy", False):
        raise SpecError("op", type(op).__name__, "cannot follow ConvertBoxes: put that after all ops that change boxes")
