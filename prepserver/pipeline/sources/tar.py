"""`Tar`: WebDataset shards."""

import re

from prepserver.pipeline.declared import DeclaredColumns
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Bytes, Image, Json, Mask
from prepserver.pipeline.source import PathLike, absolute
from prepserver.pipeline.table import NamedColumnsSpec, Names

_EXTENSIONS = re.compile(r"[^/;:\s]+(;[^/;:\s]+)*")


class Tar(NamedColumnsSpec):
    """WebDataset shards: tar files in which the files of a sample follow one another and share a name.

    The name of a file up to its first dot is the sample's key; the rest is its extension. Samples keep the order of the
    shards and of the files in them. Shards are read in place, and any sample at any time, so epochs, shuffling and
    resuming are exact. They must be plain tars, because a compressed one cannot be read from the middle.

    Images with captions::

        Tar("/data/{000..127}.tar", columns={"image": kinds.Image(), "caption": kinds.Text()}, names={"caption": "txt"})

    Attributes:
        shards: Path or URL of the shards on the daemon's machine. Braces, ``/data/train-{000..127}.tar`` or ``{a,b}``,
            and the wildcards ``*``, ``?`` and ``[...]``, whose matches are sorted, name several shards. A relative path
            counts from the current directory.
        image: Extension of the image. Several are separated by ``;``: the first one that a sample has counts.
        label: Extension of a text file with the class number; None for samples without labels.
        mask: Extension of a mask, such as ``seg.png``, for a column ``mask``; None for no such column.
        columns: All columns to read, a map of names to kinds, instead of image, mask and label. An `Image`, `Mask` or
            `Bytes` is a file as it is, a `Text` a file in UTF-8, a `Label` or `Scalar` a number as text, an `Array` or
            `Tokens` a .npy file or a JSON list, a `Json` a JSON file.
        names: Extensions of columns that are called otherwise in the shards. ``"json:score"`` is a key of a JSON file;
            dots lead into objects. Without a name, ``image``, ``label`` and ``mask`` have the extensions above.
    """

    paths = ("shards",)
    kinds = (*NamedColumnsSpec.kinds, Json)

    def __init__(
        self,
        shards: str | PathLike,
        image: str = "jpg;jpeg;png;webp",
        label: str | None = "cls",
        mask: str | None = None,
        columns: DeclaredColumns | None = None,
        names: Names = None,
    ) -> None:
        if isinstance(shards, list | tuple):
            reason = "must be one path: name several shards by braces or wildcards, such as /data/train-{000..127}.tar"
            raise SpecError("shards", shards, reason)
        for name, value in (("image", image), ("label", label or "cls"), ("mask", mask or "png")):
            if not (isinstance(value, str) and _EXTENSIONS.fullmatch(value)):
                raise SpecError(name, value, "must be an extension such as 'jpg', or several as 'jpg;png'")
        self.shards = absolute("shards", shards)
        super().__init__(image, label, mask, columns, names)
        for column, kind in self.columns.items():
            extensions, key = self.member(column)
            if not _EXTENSIONS.fullmatch(extensions) or self.name_of(column).endswith(":"):
                reason = "must be an extension such as 'txt', several as 'jpg;png', or 'json:key'"
                raise SpecError("names", self.name_of(column), reason)
            if key and isinstance(kind, Image | Mask | Bytes):
                reason = f"{column!r} is a whole file: a key of a JSON file gives texts and numbers"
                raise SpecError("names", self.name_of(column), reason)

    def member(self, column: str) -> tuple[str, str]:
        """Return the extension of a column's file, or several, and the key in that file; empty for the whole file."""
        extensions, _, key = self.name_of(column).partition(":")
        return extensions, key

    def _usual_name(self, column: str) -> str:
        return "cls" if column == "label" and not self.label else super()._usual_name(column)

    @property
    def has_listed_label(self) -> bool:
        """As `NamedColumnsSpec.has_listed_label`; not what lies under a key of a JSON file."""
        return super().has_listed_label and not self.member("label")[1]
