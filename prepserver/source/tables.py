"""Lines that hold several columns, some of which name files of images."""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any

from prepserver.pipeline.kinds import Image, Kind, Mask
from prepserver.pipeline.record import label_of
from prepserver.source.container import Container
from prepserver.source.errors import SampleError
from prepserver.source.lines import LinesSource
from prepserver.source.roots import Roots
from prepserver.source.samples import Record, read_regular_file


class TableSource(LinesSource):
    """A `Source` over tables."""

    def __init__(self, container: Container, spec: Any, roots: Roots | None) -> None:
        super().__init__(container, spec, roots)
        self._columns = list(spec.columns.items())

    @abstractmethod
    def values(self, file: int, line: str) -> list[Any]:
        """Return what a line of a file has for each column.

        Raises:
            SampleError: The line lacks one, or is broken.
        """

    @abstractmethod
    def convert(self, column: str, kind: Kind, given: Any) -> Any:
        """Return what `values` gave as a value of a kind.

        Raises:
            SampleError: It is none.
        """

    def read(self, index: int) -> Record:
        """As `Source.read`."""
        record: Record = {}
        file, line = self.line(index)
        for (column, kind), given in zip(self._columns, self.values(file, line), strict=True):
            if isinstance(kind, Image | Mask):
                record[column] = self._image(file, column, given)
            else:
                record[column] = self.convert(column, kind, given)
        return record

    def label(self, index: int) -> int:
        """As `Source.label`: nothing else of the line is converted, and no file is read."""
        file, line = self.line(index)
        label = label_of(self._spec.columns)
        for (column, kind), given in zip(self._columns, self.values(file, line), strict=True):
            if column == label:
                return int(self.convert(column, kind, given))
        return 0

    def _image(self, file: int, column: str, name: Any) -> bytes:
        root = self._spec.root or os.path.dirname(self._files[file])
        # Not above the root: only its folder is known, and open to workers.
        if not isinstance(name, str) or not name or "\0" in name or ".." in name.split("/"):
            raise SampleError(f"its {column} is {name!r:.100}, and must be the path of a file below {root}")
        path = os.path.join(root, name)
        if not path.startswith(f"{root.rstrip('/')}/"):
            raise SampleError(f"its {column} is {name!r:.100}, which does not lie below {root}: pass another root=")
        try:
            return read_regular_file(os.fsencode(path), roots=self._roots)
        except SampleError as error:
            raise SampleError(f"its {column} {name}: {error.reason}") from error
