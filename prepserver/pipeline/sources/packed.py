"""`Packed`: a dataset that ``prepserver pack`` has made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prepserver.pipeline import checks, declared
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Kind
from prepserver.pipeline.record import Record, images
from prepserver.pipeline.source import PathLike, SourceSpec, absolute


@dataclass(frozen=True, init=False)
class Packed(SourceSpec):
    """A dataset that ``prepserver pack`` made from another one: the same samples, labels and order, read faster.

    Attributes:
        root: Its folder, as the daemon's machine sees it; a relative path counts from the current directory.
            A URL names a bucket.
        masks: Serve the masks that were packed with it: samples then have a column ``mask``. None is False.
        columns: Columns that are served, of those that were packed: a map of names to kinds, as ``prepserver pack``
            shows it at its end. The default is ``image`` and ``label``, and ``mask`` with `masks`.

    Raises:
        SpecError: `root` is no path, `masks` no bool, or a column cannot be.
    """

    paths = ("root",)
    root: str
    masks: bool | None = None
    declared: Record | None = None

    def __init__(
        self,
        root: str | PathLike,
        masks: bool | None = None,
        columns: Mapping[str, Kind] | list[Any] | None = None,
    ) -> None:
        masks = checks.flag("masks", masks or False) or None
        if masks and columns is not None:
            raise SpecError("masks", masks, "columns names the mask: leave out one of the two")
        given = None if columns is None else declared.declared_columns(columns)
        self._keep(root=absolute("root", root), masks=masks, declared=given)

    @property
    def columns(self) -> Record:
        return images(bool(self.masks)) if self.declared is None else self.declared

    def to_wire(self) -> dict[str, Any]:
        """As `Spec.to_wire`."""
        wire = {name: value for name, value in super().to_wire().items() if name != "declared"}
        return wire if self.declared is None else {**wire, "columns": declared.columns_to_wire(self.declared)}
