"""The bases of sources whose columns have names in their files: tables, and samples of named parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from prepserver.pipeline.declared import DeclaredColumns, declared_columns
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Array, Bytes, Image, Json, Kind, Label, Mask, Scalar, Text, Tokens
from prepserver.pipeline.record import Columns, images
from prepserver.pipeline.source import PathLike, SourceSpec, absolute, absolute_all

Paths = str | PathLike | Sequence[str | PathLike]
"""A path or several. Each may hold braces, ``{000..127}`` or ``{a,b}``, and wildcards: ``*``, ``?`` and ``[...]``."""

Names = Mapping[str, str] | None
"""Names in the files of columns that are called otherwise there."""

JoinedNames = Mapping[str, str | Sequence[str]] | None
"""As `Names`; a list names the columns of the file whose numbers make up one `Array`."""

_MAX_NAME_CHARS = 256


class TableSpec(SourceSpec):
    """A table in files, of which some columns are read.

    Raises:
        SpecError: A column's kind is not supported, or a name or a path is invalid.
    """

    paths: ClassVar[tuple[str, ...]] = ("path",)
    kinds: ClassVar[tuple[type[Kind], ...]]  # that a column may have
    joins: ClassVar[bool] = True  # whether `names` may be `JoinedNames`
    declared: Columns

    def __init__(self, path: Paths, columns: DeclaredColumns, names: JoinedNames = None) -> None:
        self.declared = columns_of_kinds(columns, self.kinds, type(self).__name__, has_class_names=True)
        # Only those that differ: equal meaning is equal data.
        given = checked_names(names, self.declared, self.joins)
        self.names = {column: name for column, name in given if name != column}
        self.path = absolute_all("path", path)

    def names_of(self, column: str) -> list[str]:
        """Return what the files call a column: one name, or those of the columns that it joins."""
        name = self.names.get(column, column)
        return [name] if isinstance(name, str) else name

    def kind_of(self, column: str) -> Kind:
        """Return the kind of what each of `names_of` holds."""
        kind = self.columns[column]
        return kind.number if isinstance(kind, Array) and isinstance(self.names.get(column), list) else kind


def columns_of_kinds(
    columns: DeclaredColumns, kinds: tuple[type[Kind], ...], source: str, has_class_names: bool = False
) -> Columns:
    """Return declared columns; raises `SpecError` if the `source` of this name gives none of a column's kind."""
    try:
        declared = declared_columns(columns, has_class_names)
    except SpecError as error:
        if error.field != "columns" or not isinstance(error.value, str):
            raise
        remedy = f'. Choose a short one, and say what the files call it: names={{"short": {error.value!r}}}'
        raise SpecError("columns", error.value, error.reason + remedy) from None
    for name, kind in declared.items():
        if type(kind) not in kinds:
            known = ", ".join(each.__name__ for each in kinds)
            raise SpecError(f"columns.{name}", kind, f"{source} gives columns of the kinds {known}")
    return declared


def checked_names(names: JoinedNames, columns: Columns, joins: bool = False) -> list[tuple[str, Any]]:
    """Return columns and their names in the files, sorted; with `joins` there may be a list of names.

    Raises:
        SpecError: There is no such column, or a name cannot be one, or the column cannot hold as many as there are.
    """
    names = {} if names is None else names
    if not isinstance(names, Mapping):
        raise SpecError("names", names, "must be a map of columns to their names in the files")
    for column, name in names.items():
        if column not in columns:
            raise SpecError("names", column, f"is no column; there are: {', '.join(columns)}")
        several = name if isinstance(name, list | tuple) and joins else [name]
        if isinstance(name, list | tuple) and not joins:
            raise SpecError("names", name, "must be one name: Csv, Jsonl and Parquet join several columns")
        if not all(isinstance(each, str) and 0 < len(each) <= _MAX_NAME_CHARS for each in several):
            raise SpecError("names", name, f"must be a name of 1 to {_MAX_NAME_CHARS} characters")
        if several is name and getattr(columns[column], "shape", ()) != (len(several),):
            reason = f"are {len(several)} columns of the files: {column!r} must be a kinds.Array(({len(several)},))"
            raise SpecError("names", name, reason)
    return [(column, name if isinstance(name, str) else [*name]) for column, name in sorted(names.items())]


class NamedColumnsSpec(SourceSpec):
    """Samples of named values: by default image, mask and label, or columns as declared. Errors as `TableSpec`."""

    kinds: ClassVar[tuple[type[Kind], ...]] = (Image, Mask, Label, Scalar, Array, Tokens, Text, Bytes)

    def __init__(
        self, image: str, label: str | None, mask: str | None, columns: DeclaredColumns | None, names: Names
    ) -> None:
        self.image = image
        self.label = label or ""  # None on the wire would be the default
        self.mask = mask or None
        self.declared = None if columns is None else columns_of_kinds(columns, self.kinds, type(self).__name__)
        given = checked_names(names, self.columns)
        self.names = {column: name for column, name in given if name != self._usual_name(column)} or None

    @property
    def columns(self) -> Columns:
        """As `SourceSpec.columns`."""
        return self.declared or images(self.mask is not None, bool(self.label))

    def name_of(self, column: str) -> str:
        """Return what the files call a column."""
        return str((self.names or {}).get(column, self._usual_name(column)))

    def _usual_name(self, column: str) -> str:
        return {"image": self.image, "label": self.label, "mask": self.mask}.get(column) or column

    @property
    def has_listed_label(self) -> bool:
        """Whether the listing holds the column ``label``, as numbers of classes."""
        return isinstance(self.columns.get("label"), Label)


class TextTableSpec(TableSpec):
    """A table as text. The files that it names lie below the folder `root`; None for the folder of the table's file."""

    paths = ("path", "root")
    kinds = (Text, Json, Scalar, Label, Array, Tokens, Image, Mask, Bytes)

    def __init__(
        self, path: Paths, columns: DeclaredColumns, names: JoinedNames = None, root: str | PathLike | None = None
    ) -> None:
        super().__init__(path, columns, names)
        self.root = None if root is None else absolute("root", root)
