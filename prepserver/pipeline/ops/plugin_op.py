"""`PluginOp`: a function of the daemon's operator, applied to one column."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prepserver.pipeline import declared
from prepserver.pipeline.declared import PluginSpec
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image, Kind, Spatial
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import INDEX, Record


@dataclass(frozen=True, slots=True, init=False)
class PluginOp(PluginSpec, Op):
    """A function of the daemon's operator, which the daemon's configuration loads.

    It is called as ``function(array, rng, **params)`` for one sample at a time. An image is an array of shape
    (H, W, C); a value of another kind is as the source gives it. `rng` is a ``numpy.random.Generator`` that depends
    only on seed, pass, sample, place of the op and view. See docs/plugins.md.

    Attributes:
        name: Name of the plug-in.
        params: Keyword arguments: numbers, strings, bools, None, and lists of these.
        column: The column that it changes; None for all images.
        returns: Kind of the returned value, such as ``kinds.Image(size=(64, 64))``; None for the same shape and dtype
            as its input. An image without a size keeps its size.
        code: Digest of the code, as `prepserver status --json` shows it; empty for any code.
    """

    nests = False
    role = "op"
    own = ("column", "returns", "code")

    name: str
    params: Mapping[str, Any]
    column: str | None
    returns: Kind | None
    code: str

    def __init__(
        self,
        name: str,
        /,
        *,
        column: str | None = None,
        returns: Kind | Mapping[str, Any] | None = None,
        code: str = "",
        **params: object,
    ) -> None:
        if column is not None and not isinstance(column, str):
            raise SpecError("column", column, "must be the name of a column, or None for all images")
        self._keep(
            name=declared.plugin_name(name),
            params=declared.parameters(params, self.own),
            column=column,
            returns=None if returns is None else declared.declared_kind("returns", returns),
            code=declared.code(code),
        )

    def after(self, record: Record) -> Record:
        """The record after the op, as declared.

        Raises:
            SpecError: There is no such column, or it cannot become the declared kind.
        """
        columns = [self.column] if self.column else [name for name, kind in record.items() if isinstance(kind, Image)]
        if not columns or not record.keys() - {INDEX} >= set(columns):
            there = ", ".join(name for name in record if name != INDEX)
            raise SpecError("column", self.column, f"is no column here, or there is no image; there are: {there}")
        changed = {name: self._returned(record[name]) for name in columns}
        beside = [name for name, kind in record.items() if isinstance(kind, Spatial) and name not in changed]
        if beside and any(_size(kind) != _size(record[name]) for name, kind in changed.items()):
            raise SpecError("returns", self.returns, f"changes the size, and {', '.join(beside)} cannot follow")
        return {**record, **changed}

    def _returned(self, kind: Kind) -> Kind:
        if kind.is_spatial and not isinstance(kind, Image):
            raise SpecError("column", self.column, f"is of kind {type(kind).__name__}, which follows its image")
        if self.returns is None:
            return kind
        if isinstance(kind, Image) != isinstance(self.returns, Image) or self.returns.is_spatial != kind.is_spatial:
            raise SpecError("returns", self.returns, f"cannot come of {type(kind).__name__}: an image stays an image")
        if isinstance(self.returns, Image) and self.returns.size is None:
            return dataclasses.replace(self.returns, size=_size(kind))
        return self.returns

    def to_wire(self) -> dict[str, Any]:
        """As `Spec.to_wire`."""
        returns = None if self.returns is None else declared.kind_to_wire(self.returns)
        return {**super(PluginOp, self).to_wire(), "params": dict(self.params), "returns": returns}


def _size(kind: Kind) -> tuple[int, int] | None:
    return kind.size if isinstance(kind, Spatial) else None
