"""`Packed`: a dataset that ``prepserver pack`` has made."""

from __future__ import annotations

from dataclasses import dataclass

from prepserver.pipeline.source import PathLike, SourceSpec, absolute


@dataclass(frozen=True, init=False)
class Packed(SourceSpec):
    """A dataset that ``prepserver pack`` has made of another one: same samples, labels and order, read faster.

    Attributes:
        root: Its folder, as the daemon's machine sees it; a relative path counts from the current directory.

    Raises:
        SpecError: `root` is no path.
    """

    paths = ("root",)
    root: str

    def __init__(self, root: str | PathLike) -> None:
        self._keep(root=absolute("root", root))
