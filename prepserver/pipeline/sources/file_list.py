"""`FileList`: images named by a list."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.record import IMAGES, IMAGES_WITH_MASKS, Record
from prepserver.pipeline.source import PathLike, SourceSpec, absolute


@dataclass(frozen=True, init=False)
class FileList(SourceSpec):
    """Images named by a list: text lines ``path label``, or CSV (a name that ends in .csv) ``path,label``.

    If all labels are integers, they are taken as they are; otherwise each distinct label is the name of a class, and
    its place among the sorted names (by code point) is the label. Numbers that are not integers are refused.

    Attributes:
        path: The list file, as the daemon's machine sees it; a relative path counts from the current directory. The
            paths inside are relative to the folder of the list file, or absolute.
        masks: True where each line has the path of a mask, too: ``path,label,mask``, or in a text file separated by
            tabs. Samples then have a column ``mask``.

    Raises:
        SpecError: `path` is none, or `masks` neither True, False nor None.
    """

    paths = ("path",)
    path: str
    masks: bool | None = None

    def __init__(self, path: str | PathLike, masks: bool | None = None) -> None:
        if masks not in (None, True, False):
            raise SpecError("masks", masks, "must be True or False")
        self._keep(path=absolute("path", path), masks=masks or None)

    @property
    def columns(self) -> Record:
        """``image`` and ``label``, and ``mask`` between them where there are masks."""
        return IMAGES_WITH_MASKS if self.masks else IMAGES
