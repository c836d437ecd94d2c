"""What sources of tables have in common: files, and the columns that are taken from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from prepserver.pipeline import declared
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Kind
from prepserver.pipeline.record import Record
from prepserver.pipeline.source import PathLike, SourceSpec

Paths = str | PathLike | Sequence[str | PathLike]
"""A path or several. Each may hold braces, ``{000..127}`` or ``{a,b}``, and wildcards: ``*``, ``?`` and ``[...]``."""

_MAX_NAME_CHARS = 256


class TableSpec(SourceSpec):
    """A table in files, of which some columns are taken.

    Attributes:
        kinds: Kinds that a column may have.
        path: The files.
        declared: The columns.
        names: What a column is called in the files, where that is not its own name.
    """

    paths: ClassVar[tuple[str, ...]] = ("path",)
    kinds: ClassVar[tuple[type[Kind], ...]]
    path: tuple[str, ...]
    declared: Record
    names: Mapping[str, str]

    def _keep_columns(self, columns: object, names: object) -> None:
        """Set `declared` and `names`.

        Raises:
            SpecError: A column cannot have its kind, or a name is none.
        """
        found = declared.declared_columns(columns)
        for name, kind in found.items():
            if not isinstance(kind, self.kinds):
                known = ", ".join(each.__name__ for each in self.kinds)
                raise SpecError(f"columns.{name}", kind, f"{type(self).__name__} gives columns of the kinds {known}")
        names = {} if names is None else names
        if not isinstance(names, Mapping):
            raise SpecError("names", names, "must be a map of columns to their names in the files")
        for column, name in names.items():
            if column not in found:
                raise SpecError("names", column, f"is no column; there are: {', '.join(found)}")
            if not (isinstance(name, str) and 0 < len(name) <= _MAX_NAME_CHARS):
                raise SpecError("names", name, f"must be a name of 1 to {_MAX_NAME_CHARS} characters")
        self._keep(declared=found, names={name: names[name] for name in sorted(names) if names[name] != name})

    @property
    def columns(self) -> Record:
        """As declared."""
        return self.declared

    def to_wire(self) -> dict[str, Any]:
        """As `Spec.to_wire`."""
        wire = super().to_wire()
        del wire["declared"]
        return {**wire, "columns": declared.columns_to_wire(self.declared), "names": dict(self.names)}
