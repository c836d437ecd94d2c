"""`Jsonl`: a JSON object in each line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prepserver.pipeline.kinds import Array, Image, Kind, Label, Mask, Scalar, Text, Tokens
from prepserver.pipeline.record import Record
from prepserver.pipeline.source import PathLike, absolute, absolute_all
from prepserver.pipeline.table import Paths, TableSpec


@dataclass(frozen=True, init=False)
class Jsonl(TableSpec):
    """Lines of JSON, one object and one sample each, in the order of the files and of their lines.

    Files are UTF-8. Empty lines are skipped.

    Attributes:
        path: The files, as for `Csv`: ``/data/train-{0..7}.jsonl``.
        columns: Columns that are taken, by name: a map to kinds. A `Text` is a string, a `Scalar` or `Label` a number,
            true or false, an `Array` or `Tokens` a list. An `Image` or `Mask` is the path of a file below `root`.
        names: The key of a column whose own name differs; dots lead into objects: ``{"answer": "answer.text"}``.
        root: The folder that paths of images are relative to; None for the folder of the file.

    Raises:
        SpecError: An argument is none of that.
    """

    paths = ("path", "root")
    kinds = (Text, Scalar, Label, Array, Tokens, Image, Mask)

    path: tuple[str, ...]
    declared: Record
    names: Mapping[str, str]
    root: str | None = None

    def __init__(
        self,
        path: Paths,
        columns: Mapping[str, Kind] | list[Any],
        names: Mapping[str, str] | None = None,
        root: str | PathLike | None = None,
    ) -> None:
        self._keep_columns(columns, names)
        self._keep(path=absolute_all("path", path), root=None if root is None else absolute("root", root))
