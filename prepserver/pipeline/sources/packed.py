"""`Packed`: a dataset that ``prepserver pack`` has made."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.record import IMAGES, IMAGES_WITH_MASKS, Record
from prepserver.pipeline.source import PathLike, SourceSpec, absolute


@dataclass(frozen=True, init=False)
class Packed(SourceSpec):
    """A dataset that ``prepserver pack`` has made of another one: same samples, labels and order, read faster.

    Attributes:
        root: Its folder, as the daemon's machine sees it; a relative path counts from the current directory.
        masks: True where it was packed with masks: samples then have a column ``mask``.

    Raises:
        SpecError: `root` is no path, or `masks` neither True, False nor None.
    """

    paths = ("root",)
    root: str
    masks: bool | None = None

    def __init__(self, root: str | PathLike, masks: bool | None = None) -> None:
        if masks not in (None, True, False):
            raise SpecError("masks", masks, "must be True or False")
        self._keep(root=absolute("root", root), masks=masks or None)

    @property
    def columns(self) -> Record:
        """``image`` and ``label``, and ``mask`` between them where masks are asked for."""
        return IMAGES_WITH_MASKS if self.masks else IMAGES
