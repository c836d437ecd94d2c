"""`ImageFolder`: images in one folder for each class."""

from prepserver.pipeline.source import PathLike, SourceSpec, absolute


class ImageFolder(SourceSpec):
    """Images in one folder per class: ``root/<class>/.../<image>``, as in torchvision's ImageFolder.

    Classes are the sorted names of the folders directly under the root. Images lie anywhere below a class folder; links
    are followed.

    Attributes:
        root: The folder of class folders, as the daemon's machine sees it; a relative path counts from the current
            directory. A URL names a bucket.
        masks: A folder of masks, or None: ``masks/<class>/.../<image>.png`` is the mask of
            ``root/<class>/.../<image>.jpg``. Samples then have a column ``mask``.
    """

    paths = ("root", "masks")

    def __init__(self, root: str | PathLike, masks: str | PathLike | None = None) -> None:
        self.root = absolute("root", root)
        self.masks = None if masks is None else absolute("masks", masks)
