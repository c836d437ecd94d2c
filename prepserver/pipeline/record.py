"""A record: the named columns of a sample, each of a kind; and the fields of its row."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple, TypeVar

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import ITEM_BYTES, Boxes, Image, Index, Kind, Label, Mask

Columns = Mapping[str, Kind]
"""Columns in order, by name. Every record has the columns of its source and ``index``."""

KindT = TypeVar("KindT", bound=Kind)

INDEX = "index"

RESERVED = (INDEX, "valid")
"""Names that no source may give to a column: ``valid`` is a field that batches get with ``on_error="mask"``."""


def images(mask: bool = False, label: bool = True) -> Columns:
    """Return the columns of a dataset of images: ``image``, then ``mask`` and ``label`` if samples have them."""
    return {"image": Image()} | ({"mask": Mask()} if mask else {}) | ({"label": Label()} if label else {})


IMAGES = images()


class RowField(NamedTuple):
    """One field of a row."""

    name: str  # the column's, with ``_1``, ``_2`` and so on for further views
    dtype: str  # one of `prepserver.pipeline.kinds.ITEM_BYTES`
    shape: tuple[int, ...]  # of one row
    column: str
    view: int  # which view of the sample; 0 for what all views share
    kind: Kind  # what is known of its values

    @property
    def nbytes(self) -> int:
        """Bytes of one row of it."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


def with_index(columns: Columns) -> Columns:
    """Return a source's columns and the index.

    Raises:
        SpecError: A column has a reserved name, or one that is no identifier; or boxes are in two columns, or in none
            although other columns belong to boxes.
    """
    boxes = [name for name, kind in columns.items() if isinstance(kind, Boxes)]
    if len(boxes) > 1 or (not boxes and any(kind.is_per_box for kind in columns.values())):
        raise SpecError("columns", boxes, "a sample has at most one column of boxes, and needs it for values of boxes")
    for name in columns:
        if name in RESERVED or not name.isidentifier():
            raise SpecError("columns", name, f"must be an identifier and none of {', '.join(RESERVED)}")
    return {**columns, INDEX: Index()}


def column_of(columns: Columns, name: str, kind: type[KindT], what: str) -> KindT:
    """Return what is known of a column; raises `SpecError` if there is none of its kind, which `what` names."""
    found = columns.get(name)
    if not isinstance(found, kind):
        raise SpecError("column", name, f"is no column of {what} here; there are: {', '.join(columns)}")
    return found


def shown(columns: Columns) -> str:
    """Return the columns with their kinds, for an error."""
    return ", ".join(f"{name} ({type(kind).__name__})" for name, kind in columns.items())


def renamed(columns: Columns, column: str, made: Columns, parameters: Mapping[str, str]) -> Columns:
    """Return the columns with those of `made` in place of one of them.

    The op's `parameters` name them, by column; ``column`` does for any other.

    Raises:
        SpecError: There is another column of such a name, or a name is reserved.
    """
    for name in made:
        if name in RESERVED or (name in columns and name != column):
            field = parameters.get(name, "column")
            reason = f"is reserved or the name of another column: {', '.join(columns)}. {field}= chooses another name"
            raise SpecError(field, name, reason)
    found: dict[str, Kind] = {}
    for name, kind in columns.items():
        found |= made if name == column else {name: kind}
    return found


def row_fields(columns: Columns, views: int) -> tuple[RowField, ...]:
    """Return the fields of a row, those of spatial columns once for each view.

    Raises:
        SpecError: Values of a column would differ in size from row to row, or two fields would have one name.
    """
    fields: list[RowField] = []
    for column, kind in columns.items():
        try:
            shape, dtype = kind.stored()
        except SpecError as error:
            reason = f"column {column!r}: {error.reason}"
            if isinstance(kind, Image) and any(isinstance(each, Boxes) for each in columns.values()):
                reason += ". Resize(None, max_size=n), CenterCrop(n) instead cuts no boxes off"
            raise SpecError(column, error.value, reason) from None
        own = range(views if kind.is_spatial else 1)
        fields += [RowField(field_name(column, view), dtype, shape, column, view, kind) for view in own]
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise SpecError("columns", name, f"is the name of two fields where a sample has {views} views")
    return tuple(fields)


def field_name(column: str, view: int) -> str:
    """Return the field of one view of a column, from 0: ``image``, ``image_1``, ``image_2`` and so on."""
    return f"{column}_{view}" if view else column


def changed_label(columns: Columns) -> tuple[str, ...]:
    """Return what `label_of` returns if it was another column before 0.3, the first `Label`; else nothing."""
    labels = [name for name, kind in columns.items() if isinstance(kind, Label)]
    return ("label",) if "label" in labels[1:] else ()


def class_names(columns: Columns) -> list[str]:
    """Return the names of the classes that the kind of the label declares; empty if labels are numbers."""
    kind = columns.get(label_of(columns))
    return list(kind.classes) if isinstance(kind, Label) else []


def label_of(columns: Columns, default: str = "label") -> str:
    """Return the column that a source's labels are read from: ``label``, else the first `Label`, else `default`."""
    labels = [name for name, kind in columns.items() if isinstance(kind, Label)]
    return "label" if "label" in labels else labels[0] if labels else default
