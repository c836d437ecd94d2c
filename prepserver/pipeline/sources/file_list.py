"""`FileList`: images named by a list."""

from prepserver.pipeline import checks
from prepserver.pipeline.source import PathLike, SourceSpec, absolute


class FileList(SourceSpec):
    """Images named by a list: text lines ``path label``, or CSV (if its name ends in .csv) ``path,label``.

    If all labels are integers, they stay as they are. Otherwise each distinct label is the name of a class, and the
    class's label is its place among the names, sorted by code point. Numbers that are not integers are refused.

    Attributes:
        path: The list, as the daemon's machine sees it, or its URL. A relative path counts from the current directory.
            The paths inside are absolute, relative to the folder of the list, or URLs.
        masks: Each line also has the path of a mask, for a column ``mask``: ``path,label,mask``, separated by tabs in a
            text file. None is False.
    """

    paths = ("path",)

    def __init__(self, path: str | PathLike, masks: bool | None = None) -> None:
        self.path = absolute("path", path)
        self.masks = checks.flag("masks", masks or False) or None
