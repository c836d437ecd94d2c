"""`PluginOp`: a function of the daemon's operator, applied to the images, or to one or several other columns."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

from prepserver.pipeline import checks, declared
from prepserver.pipeline.declared import PluginSpec
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Image, Kind, Spatial
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import INDEX, Columns, renamed


class PluginOp(PluginSpec, Op):
    """A function of the daemon's operator, which the daemon's configuration loads.

    Workers call it as ``function(array, rng, **params)`` for one sample at a time. An image is an array of shape
    (H, W, C); a value of another kind is as the source gives it. `rng` is a ``numpy.random.Generator`` that depends
    only on seed, pass, sample, place of the op and view. See docs/plugins.md.

    Several columns reach it together, as a dict by name, so that it may treat them alike, such as a volume and its
    segmentation; it returns a dict, too. With a map as `returns` it makes new columns, such as tokens and labels of one
    text::

        PluginOp("chat", column="messages", returns={"tokens": kinds.Tokens(), "labels": kinds.Tokens()})

    With ``block=True`` they call it as ``function(block, rngs, **params)`` for several samples of a chunk at once: an
    array whose first axis is the sample (a list, where values differ in shape or dtype), and a list with the generator
    of each. It returns as many values. Of several columns it gets a dict of such blocks, and returns one. The size of a
    block is arbitrary: what the function returns for one sample must not depend on the others.

    Attributes:
        name: Name of the plug-in.
        params: Keyword arguments: numbers, strings, bools, None, and lists of these.
        column: The column that it changes, or several, none of them an image; None for all images.
        returns: Kind of the returned value, such as ``kinds.Image(size=(64, 64))``; None for the same shape and dtype
            as its input. An image without a size keeps its size. A map of names to kinds for columns that take the
            place of `column`.
        block: Whether the function takes blocks. It needs a `column`, and samples without images.
        code: Digest of the code, as `prepserver status --json` shows it; empty for any code.
    """

    nests = False
    unwritten = (("block", False),)
    role = "op"
    own = ("column", "returns", "block", "code")

    def __init__(
        self,
        name: str,
        /,
        *,
        column: str | Sequence[str] | None = None,
        returns: Kind | Mapping[str, Any] | Sequence[Any] | None = None,
        block: bool = False,
        code: str = "",
        **params: object,
    ) -> None:
        super().__init__(name, params, code)
        self.column = column if column is None or isinstance(column, str) else declared.several_names("column", column)
        self.returns = _returns(returns)
        self.block = checks.flag("block", block)
        if block and column is None:
            raise SpecError("block", block, "is for columns that are no images: name them by column=")
        if isinstance(self.returns, tuple) and column is None:
            raise SpecError("column", column, "must name the columns from which the function makes others")
        if isinstance(self.column, tuple) and isinstance(self.returns, Kind):
            raise SpecError("returns", returns, "must be a map of names to kinds, for several columns")

    @property
    def together(self) -> tuple[str, ...]:
        """The columns that the function gets as a dict, and returns as one; none if it takes and returns one value."""
        if isinstance(self.column, tuple):
            return self.column
        return (self.column,) if isinstance(self.returns, tuple) and self.column is not None else ()

    def after(self, columns: Columns) -> Columns:
        """The columns after the op, as declared; raises `SpecError` if one is missing, or cannot become that kind."""
        made = self._made_together(columns) if self.together else self._made_alone(columns)
        if self.block and any(kind.is_spatial for kind in columns.values()):
            raise SpecError("block", self.block, "needs samples without images: rows of images are made one by one")
        return made

    def _made_alone(self, columns: Columns) -> Columns:
        named = (
            [self.column]
            if isinstance(self.column, str)
            else [name for name, kind in columns.items() if isinstance(kind, Image)]
        )
        if not named or not columns.keys() - {INDEX} >= set(named):
            there = ", ".join(name for name in columns if name != INDEX)
            raise SpecError("column", self.column, f"is no column here, or there is no image; there are: {there}")
        changed = {name: self._returned(columns[name]) for name in named}
        beside = [name for name, kind in columns.items() if isinstance(kind, Spatial) and name not in changed]
        if beside and any(_size(kind) != _size(columns[name]) for name, kind in changed.items()):
            raise SpecError("returns", self.returns, f"changes the size, and {', '.join(beside)} cannot follow")
        return {**columns, **changed}

    def _made_together(self, columns: Columns) -> Columns:
        for name in self.together:
            if name == INDEX or columns.get(name, Image()).is_spatial:
                there = ", ".join(each for each, kind in columns.items() if each != INDEX and not kind.is_spatial)
                raise SpecError("column", name, f"is no column here, or lies on an image; there are: {there or 'none'}")
        if not isinstance(self.returns, tuple):
            return columns
        for name, kind in self.returns:
            if kind.is_spatial:
                raise SpecError("returns", name, f"cannot be of the kind {type(kind).__name__}: only a source gives it")
        first, *others = self.together
        made = dict(self.returns)
        left = {name: kind for name, kind in columns.items() if name not in others}
        return renamed(left, first, made, dict.fromkeys(made, "returns"))

    def _returned(self, kind: Kind) -> Kind:
        assert not isinstance(self.returns, tuple)
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
        returns: Any = None
        if isinstance(self.returns, tuple):
            returns = declared.columns_to_wire(dict(self.returns))
        elif self.returns is not None:
            returns = declared.kind_to_wire(self.returns)
        return super().to_wire() | {"returns": returns}

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """As `Spec.from_params`; ``block`` may be missing, and is then False."""
        return super().from_params({"block": False, **params})


def _returns(given: object) -> Kind | tuple[tuple[str, Kind], ...] | None:
    if given is None:
        return None
    is_kind = isinstance(given, Mapping) and isinstance(given.get("kind"), str)  # as `kind_to_wire` gives it
    if isinstance(given, list) or (isinstance(given, Mapping) and not is_kind):
        return tuple(declared.declared_columns(given).items())
    return declared.declared_kind("returns", given)


def _size(kind: Kind) -> tuple[int, int] | None:
    return kind.size if isinstance(kind, Spatial) else None
