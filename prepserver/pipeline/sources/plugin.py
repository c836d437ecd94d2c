"""`Plugin`: a Dataset of the daemon's operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prepserver.pipeline import declared
from prepserver.pipeline.declared import PluginSpec
from prepserver.pipeline.kinds import Kind
from prepserver.pipeline.record import IMAGES, Record
from prepserver.pipeline.source import SourceSpec

_PLACE_CHARS = 200


@dataclass(frozen=True, init=False)
class Plugin(PluginSpec, SourceSpec):
    """A map-style Dataset of the daemon's operator, which the daemon's configuration loads.

    Workers make it as ``Dataset(**params)`` and read ``dataset[index]``: a dict with `columns`, or a tuple of their
    values in order. The sample must depend on the index only. See docs/plugins.md.

    Attributes:
        name: Name of the plug-in.
        params: Keyword arguments: numbers, strings, bools, None, and lists of these.
        columns: Columns of each sample: a map of names to kinds. The default is ``image`` and ``label``.
        code: Digest of the code, as `prepserver status --json` shows it; empty for any code.

    Raises:
        SpecError: A parameter or kind is not allowed.
    """

    role = "source"
    own = ("columns", "code")

    name: str
    params: Mapping[str, Any]
    declared: Record
    code: str

    def __init__(
        self,
        name: str,
        /,
        *,
        columns: Mapping[str, Kind] | list[Any] = IMAGES,
        code: str = "",
        **params: object,
    ) -> None:
        self._keep(
            name=declared.plugin_name(name),
            params=declared.parameters(params, self.own),
            declared=declared.declared_columns(columns),
            code=declared.code(code),
        )

    @property
    def columns(self) -> Record:
        """As declared."""
        return self.declared

    @property
    def place(self) -> str:
        """Its name and parameters, cut to `_PLACE_CHARS`."""
        text = f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.params.items())})"
        return text if len(text) <= _PLACE_CHARS else text[: _PLACE_CHARS - 3] + "..."

    def to_wire(self) -> dict[str, Any]:
        """As `Spec.to_wire`."""
        return {
            "source": type(self).__name__, "name": self.name, "params": dict(self.params),
            "columns": declared.columns_to_wire(self.declared), "code": self.code,
        }  # fmt: skip
