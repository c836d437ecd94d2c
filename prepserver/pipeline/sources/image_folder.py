"""`ImageFolder`: images in one folder per class."""

from prepserver.pipeline.source import PathLike, SourceSpec, absolute


class ImageFolder(SourceSpec):
    """Images in one folder per class: ``root/<class>/.../<image>``, as in torchvision's ImageFolder.

    Classes are the sorted names of the folders directly below the root. Images may lie at any depth in a class folder;
    links are followed.

    Attributes:
        root: The folder of class folders, as the daemon's machine sees it, or a URL in a bucket. A relative path counts
            from the current directory.
        masks: A folder of masks for a column ``mask``: ``masks/<class>/.../<image>.png`` is the mask of
            ``root/<class>/.../<image>.jpg``. None for no such column.
    """

    paths = ("root", "masks")

    def __init__(self, root: str | PathLike, masks: str | PathLike | None = None) -> None:
        self.root = absolute("root", root)
        self.masks = None if masks is None else absolute("masks", masks)
