"""`Packed`: a dataset that ``prepserver pack`` wrote."""

from prepserver.pipeline import checks
from prepserver.pipeline.declared import DeclaredColumns, declared_columns
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.source import PathLike, SourceSpec, absolute


class Packed(SourceSpec):
    """A dataset that ``prepserver pack`` made from another one: the same samples, labels and order, read faster.

    Attributes:
        root: Its folder, as the daemon's machine sees it, or its URL. A relative path counts from the current
            directory. A web server cannot list a folder, so name the index in it:
            ``https://example.org/packed/index-0123456789abcdef0123456789abcdef.packed``.
        masks: Serve the masks that were packed with it, as a column ``mask``. None is False.
        columns: Which of the packed columns are served: a map of names to kinds, as ``prepserver pack`` shows it at its
            end. The default is ``image`` and ``label``, and ``mask`` with `masks`.
    """

    paths = ("root",)

    def __init__(self, root: str | PathLike, masks: bool | None = None, columns: DeclaredColumns | None = None) -> None:
        masks = checks.flag("masks", masks or False) or None
        if masks and columns is not None:
            raise SpecError("masks", masks, "columns names the mask: leave out one of the two")
        self.root = absolute("root", root)
        self.masks = masks
        self.declared = None if columns is None else declared_columns(columns, has_class_names=True)

    @property
    def folder(self) -> str:
        """Where its files are: `root`, unless that names the index."""
        folder, _, name = self.root.rpartition("/")
        return folder if is_index(name) else self.root


def is_index(name: str) -> bool:
    """Say whether a file is the index of a packed dataset, by its name."""
    return name.startswith("index-") and name.endswith(".packed")
