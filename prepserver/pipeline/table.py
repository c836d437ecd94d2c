"""The base of sources of tables: files, and the columns that are read from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from prepserver.pipeline.declared import DeclaredColumns, declared_columns
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Array, Image, Kind, Label, Mask, Scalar, Text, Tokens
from prepserver.pipeline.record import Columns
from prepserver.pipeline.source import PathLike, SourceSpec, absolute, absolute_all

Paths = str | PathLike | Sequence[str | PathLike]
"""A path or several. Each may hold braces, ``{000..127}`` or ``{a,b}``, and wildcards: ``*``, ``?`` and ``[...]``."""

Names = Mapping[str, str] | None
"""Names in the files of columns that are called otherwise there."""

_MAX_NAME_CHARS = 256


class TableSpec(SourceSpec):
    """A table in files, of which some columns are read.

    Raises:
        SpecError: A column's kind is not supported, or a name or a path is invalid.
    """

    paths: ClassVar[tuple[str, ...]] = ("path",)
    kinds: ClassVar[tuple[type[Kind], ...]]  # that a column may have
    declared: Columns

    def __init__(self, path: Paths, columns: DeclaredColumns, names: Names = None) -> None:
        self.declared = declared_columns(columns)
        for name, kind in self.declared.items():
            if not isinstance(kind, self.kinds):
                known = ", ".join(each.__name__ for each in self.kinds)
                raise SpecError(f"columns.{name}", kind, f"{type(self).__name__} gives columns of the kinds {known}")
        names = {} if names is None else names
        if not isinstance(names, Mapping):
            raise SpecError("names", names, "must be a map of columns to their names in the files")
        for column, name in names.items():
            if column not in self.declared:
                raise SpecError("names", column, f"is no column; there are: {', '.join(self.declared)}")
            if not (isinstance(name, str) and 0 < len(name) <= _MAX_NAME_CHARS):
                raise SpecError("names", name, f"must be a name of 1 to {_MAX_NAME_CHARS} characters")
        # Only those that differ: equal meaning is equal data.
        self.names = {name: names[name] for name in sorted(names) if names[name] != name}
        self.path = absolute_all("path", path)


class TextTableSpec(TableSpec):
    """A table as text. Its images are files below the folder `root`; None for the folder of the table's file."""

    paths = ("path", "root")
    kinds = (Text, Scalar, Label, Array, Tokens, Image, Mask)

    def __init__(
        self, path: Paths, columns: DeclaredColumns, names: Names = None, root: str | PathLike | None = None
    ) -> None:
        super().__init__(path, columns, names)
        self.root = None if root is None else absolute("root", root)
