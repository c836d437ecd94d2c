"""`ImageFolder`: images in one folder for each class."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline.record import IMAGES, IMAGES_WITH_MASKS, Record
from prepserver.pipeline.source import PathLike, SourceSpec, absolute


@dataclass(frozen=True, init=False)
class ImageFolder(SourceSpec):
    """Images in one folder per class: ``root/<class>/.../<image>``, as torchvision's ImageFolder.

    Classes are the sorted names of the folders directly under the root; images lie anywhere below a class
    folder, and links are followed.

    Attributes:
        root: The folder of class folders, as the daemon's machine sees it; a relative path counts from the current
            directory.
        masks: A folder of masks, or None: ``masks/<class>/.../<image>.png`` is the mask of
            ``root/<class>/.../<image>.jpg``. Samples then have a column ``mask``.

    Raises:
        SpecError: A path is none.
    """

    paths = ("root", "masks")
    root: str
    masks: str | None = None

    def __init__(self, root: str | PathLike, masks: str | PathLike | None = None) -> None:
        self._keep(root=absolute("root", root), masks=None if masks is None else absolute("masks", masks))

    @property
    def columns(self) -> Record:
        """``image`` and ``label``, and ``mask`` between them where there are masks."""
        return IMAGES if self.masks is None else IMAGES_WITH_MASKS
