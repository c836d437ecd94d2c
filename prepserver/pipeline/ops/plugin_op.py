"""`PluginOp`: a function of the daemon's operator, applied to one column."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from prepserver.pipeline import checks, declared
from prepserver.pipeline.declared import PluginSpec
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image, Kind, Spatial
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import INDEX, Columns


class PluginOp(PluginSpec, Op):
    """A function of the daemon's operator, which the daemon's configuration loads.

    Workers call it as ``function(array, rng, **params)`` for one sample at a time. An image is an array of shape
    (H, W, C); a value of another kind is as the source gives it. `rng` is a ``numpy.random.Generator`` that depends
    only on seed, pass, sample, place of the op and view. See docs/plugins.md.

    With ``block=True`` they call it as ``function(block, rngs, **params)`` for several samples of a chunk at once: an
    array whose first axis is the sample (a list, where values differ in shape or dtype), and a list with the generator
    of each. It returns as many values. The size of a block is arbitrary: what the function returns
    for one sample must not depend on the others.

    Attributes:
        name: Name of the plug-in.
        params: Keyword arguments: numbers, strings, bools, None, and lists of these.
        column: The column that it changes; None for all images.
        returns: Kind of the returned value, such as ``kinds.Image(size=(64, 64))``; None for the same shape and dtype
            as its input. An image without a size keeps its size.
        block: Whether the function takes blocks. It needs a `column`, and samples without images.
        code: Digest of the code, as `prepserver status --json` shows it; empty for any code.
    """

    nests = False
    role = "op"
    own = ("column", "returns", "block", "code")

    def __init__(
        self,
        name: str,
        /,
        *,
        column: str | None = None,
        returns: Kind | Mapping[str, Any] | None = None,
        block: bool = False,
        code: str = "",
        **params: object,
    ) -> None:
        if column is not None and not isinstance(column, str):
            raise SpecError("column", column, "must be the name of a column, or None for all images")
        super().__init__(name, params, code)
        self.column = column
        self.returns = None if returns is None else declared.declared_kind("returns", returns)
        self.block = checks.flag("block", block)
        if block and column is None:
            raise SpecError("block", block, "is for a column that is no image: name it by column=")

    def after(self, columns: Columns) -> Columns:
        """The columns after the op, as declared.

        Raises:
            SpecError: There is no such column, or it cannot become the declared kind.
        """
        named = [self.column] if self.column else [name for name, kind in columns.items() if isinstance(kind, Image)]
        if not named or not columns.keys() - {INDEX} >= set(named):
            there = ", ".join(name for name in columns if name != INDEX)
            raise SpecError("column", self.column, f"is no column here, or there is no image; there are: {there}")
        if self.block and any(kind.is_spatial for kind in columns.values()):
            raise SpecError("block", self.block, "needs samples without images: rows of images are made one by one")
        changed = {name: self._returned(columns[name]) for name in named}
        beside = [name for name, kind in columns.items() if isinstance(kind, Spatial) and name not in changed]
        if beside and any(_size(kind) != _size(columns[name]) for name, kind in changed.items()):
            raise SpecError("returns", self.returns, f"changes the size, and {', '.join(beside)} cannot follow")
        return {**columns, **changed}

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
        wire = super().to_wire() | {"returns": returns}
        return wire if self.block else {name: value for name, value in wire.items() if name != "block"}

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """As `Spec.from_params`; ``block`` may be missing, and is then False."""
        return super().from_params({"block": False, **params})


def _size(kind: Kind) -> tuple[int, int] | None:
    return kind.size if isinstance(kind, Spatial) else None
