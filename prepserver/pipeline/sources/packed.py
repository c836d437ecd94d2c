"""`Packed`: a dataset that ``prepserver pack`` has made."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline import checks
from prepserver.pipeline.source import PathLike, SourceSpec, absolute


@dataclass(frozen=True, init=False)
class Packed(SourceSpec):
    """A dataset that ``prepserver pack`` made from another one: the same samples, labels and order, read faster.

    Attributes:
        root: Its folder, as the daemon's machine sees it; a relative path counts from the current directory.
            A URL names a bucket.
        masks: Serve the masks that were packed with it: samples then have a column ``mask``. None is False.

    Raises:
        SpecError: `root` is no path, or `masks` no bool.
    """

    paths = ("root",)
    root: str
    masks: bool | None = None

    def __init__(self, root: str | PathLike, masks: bool | None = None) -> None:
        self._keep(root=absolute("root", root), masks=checks.flag("masks", masks or False) or None)
