"""Tables: lines with several columns, which may hold the paths of images and other files."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Bytes, Image, Kind, Mask
from prepserver.pipeline.urls import canonical, is_url
from prepserver.source.container import Container
from prepserver.source.errors import SampleError
from prepserver.source.lines import LinesSource
from prepserver.source.local import LocalFiles
from prepserver.source.roots import Roots
from prepserver.source.samples import Record, is_path, remote_bytes
from prepserver.source.storage import remote

_AHEAD = 4 * remote.IN_FLIGHT  # how many lines are remembered from `prefetch` to `read`


class TableSource(LinesSource):
    """A `Source` over tables."""

    convert: Callable[[str, Kind, Any], Any]  # makes a value of a column's kind from what `values` returned for it

    def __init__(self, container: Container, spec: Any, roots: Roots) -> None:
        super().__init__(container, spec, roots)
        self._columns = [
            (column, kind, isinstance(kind, Image | Mask | Bytes)) for column, kind in spec.columns.items()
        ]
        self._named = [place for place, (*_, is_file) in enumerate(self._columns) if is_file]
        self._follows = bool(self._named) and is_url(spec.root or self._files[0])
        self._ahead: dict[int, tuple[int, int, int]] = {}  # places of lines whose files are still to be asked for
        self._taken: dict[int, tuple[int, list[Any]]] = {}  # file and values of lines whose files were asked for
        self._local = LocalFiles(roots)

    @abstractmethod
    def values(self, file: int, line: str) -> list[Any]:
        """Return what a line holds for each column; raises `SampleError` if it lacks one, or is broken."""

    def read(self, index: int) -> Record:
        record: Record = {}
        if self._ahead:
            self._ahead.pop(index, None)
            self._follow()
        file, values = self._taken.pop(index) if index in self._taken else self._values(index)
        for (column, kind, is_file), given in zip(self._columns, values, strict=True):
            if not is_file:
                record[column] = self.convert(column, kind, given)
                continue
            path = self._path_of(file, column, given)
            try:
                if is_url(path):
                    record[column] = remote_bytes(remote.RemoteRead(path))
                else:
                    record[column] = self._local.read(os.fsencode(path))
            except SampleError as error:
                raise SampleError(f"its {column} {path}: {error.reason}") from error
        return record

    @property
    def reads_ahead(self) -> bool:
        return super().reads_ahead or self._follows or self._local.is_slow

    def prefetch(self, indices: Sequence[int]) -> None:
        """As `Source.prefetch`: the lines, and the files that they name: of a bucket, as soon as its lines arrive."""
        super().prefetch(indices)
        if self._follows:
            for kept in (self._ahead, self._taken):
                for index in list(kept)[: -_AHEAD // 2 or None] if len(kept) > _AHEAD else ():
                    del kept[index]
            self._ahead |= {index: self._place(index) for index in indices}
            self._follow()
        elif self._local.is_slow and not self._shards.wants:  # lines of this machine, which are short
            self._local.open(self._files_of(indices))

    def with_files(self, index: int, reason: str) -> str:
        if not self._named:
            return reason
        paths: list[str] = []
        with contextlib.suppress(OSError):  # the table has changed since the sample was read
            paths = self._named_by(*self._values(index))
        columns = (self._columns[place][0] for place in self._named)
        files = ", ".join(f"{column} {path}" for column, path in zip(columns, paths, strict=False))
        return f"{reason} ({files})" if files else reason

    def _follow(self) -> None:
        """Begin to read the files that those lines name which have arrived."""
        while self._ahead and self._shards.has_arrived(*next(iter(self._ahead.values()))):
            index = next(iter(self._ahead))
            del self._ahead[index]
            with contextlib.suppress(SampleError):  # reading the sample raises it again
                self._taken[index] = self._values(index)
                remote.link().want(map(remote.RemoteRead, self._named_by(*self._taken[index])))

    def _files_of(self, indices: Sequence[int]) -> Iterator[bytes]:
        """Yield the paths of the files that lines name, as far as the lines are in order."""
        for index in indices:
            with contextlib.suppress(SampleError):
                yield from map(os.fsencode, self._named_by(*self._values(index)))

    def _named_by(self, file: int, values: list[Any]) -> list[str]:
        return [self._path_of(file, self._columns[place][0], values[place]) for place in self._named]

    def _values(self, index: int) -> tuple[int, list[Any]]:
        file, line = self.line(index)
        return file, self.values(file, line)

    def read_columns(self, index: int, columns: Sequence[str]) -> Record:
        """As `Source.read_columns`; converts nothing else of the line, and reads no file that it names."""
        wanted = [(place, *each[:2]) for place, each in enumerate(self._columns) if each[0] in columns]
        # `prefetch` asks a bucket for all files of a line, and `read` takes them.
        if self._follows or any(self._columns[place][2] for place, *_ in wanted):
            return super().read_columns(index, columns)
        _, values = self._values(index)
        return {column: self.convert(column, kind, values[place]) for place, column, kind in wanted}

    def label(self, index: int) -> int:
        """As `Source.label`; converts nothing else of the line, and reads no file that it names."""
        _, values = self._values(index)
        for (column, kind, _), given in zip(self._columns, values, strict=True):
            if column == self._label:
                return int(self.convert(column, kind, given))
        return 0

    def _path_of(self, file: int, column: str, name: Any) -> str:
        root = self._spec.root or os.path.dirname(self._files[file])
        # Not above the root: workers may open the files below it only.
        if not isinstance(name, str) or not name or not is_path(name) or ".." in name.split("/"):
            raise SampleError(f"its {column} is {name!r:.100}, and must be the path of a file below {root}, without ..")
        try:
            joined = os.path.join(root, name)
            path = canonical(column, name) or canonical(column, joined) or joined
        except SpecError as error:
            raise SampleError(f"its {column} is {name!r:.100}, and {error.reason}") from None
        if not path.startswith(f"{root.rstrip('/')}/"):
            raise SampleError(f"its {column} is {name!r:.100}, which does not lie below {root}: pass another root=")
        return path
