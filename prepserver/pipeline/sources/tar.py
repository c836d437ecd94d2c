"""`Tar`: WebDataset shards."""

import re

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.record import Columns, images
from prepserver.pipeline.source import PathLike, SourceSpec, absolute

_EXTENSIONS = re.compile(r"[^/;\s]+(;[^/;\s]+)*")


class Tar(SourceSpec):
    """WebDataset shards: tar files in which the files of a sample follow one another and share a name.

    The name of a file up to its first dot is the sample's key; the rest is its extension. Samples keep the order of the
    shards and of the files in them. Shards are read in place, and any sample at any time, so epochs, shuffling and
    resuming are exact. They must be plain tars, because a compressed one cannot be read from the middle.

    Attributes:
        shards: Path or URL of the shards on the daemon's machine. Braces, ``/data/train-{000..127}.tar`` or ``{a,b}``,
            and the wildcards ``*``, ``?`` and ``[...]``, whose matches are sorted, name several shards. A relative path
            counts from the current directory.
        image: Extension of the image. Several are separated by ``;``: the first one that a sample has counts.
        label: Extension of a text file with the class number; None for samples without labels.
        mask: Extension of a mask, such as ``seg.png``, for a column ``mask``; None for no such column.
    """

    paths = ("shards",)

    def __init__(
        self,
        shards: str | PathLike,
        image: str = "jpg;jpeg;png;webp",
        label: str | None = "cls",
        mask: str | None = None,
    ) -> None:
        if isinstance(shards, list | tuple):
            reason = "must be one path: name several shards by braces or wildcards, such as /data/train-{000..127}.tar"
            raise SpecError("shards", shards, reason)
        label = label or ""  # None on the wire would be the default
        for name, value in (("image", image), ("label", label or "cls"), ("mask", mask or "png")):
            if not (isinstance(value, str) and _EXTENSIONS.fullmatch(value)):
                raise SpecError(name, value, "must be an extension such as 'jpg', or several as 'jpg;png'")
        self.shards = absolute("shards", shards)
        self.image = image
        self.label = label
        self.mask = mask or None

    @property
    def columns(self) -> Columns:
        return images(self.mask is not None, bool(self.label))
