"""`FileList`: images named by a list."""

from prepserver.pipeline import checks
from prepserver.pipeline.source import PathLike, SourceSpec, absolute


class FileList(SourceSpec):
    """Images named by a list: text lines ``path label``, or CSV (a name that ends in .csv) ``path,label``.

    If all labels are integers, they stay as they are. Otherwise each distinct label is the name of a class, and its
    place among the names, sorted by code point, becomes the label. Numbers that are not integers are refused.

    Attributes:
        path: The list file, as the daemon's machine sees it; a relative path counts from the current directory. The
            paths inside are relative to the folder of the list file, or absolute, or URLs. It may be a URL itself.
        masks: Each line also has the path of a mask: ``path,label,mask``, in a text file separated by tabs. Samples
            then have a column ``mask``. None is False.
    """

    paths = ("path",)

    def __init__(self, path: str | PathLike, masks: bool | None = None) -> None:
        self.path = absolute("path", path)
        self.masks = checks.flag("masks", masks or False) or None
