"""How `FileList` is read: its list, kept while the file has the same time and size."""

from __future__ import annotations

import os
from collections.abc import Callable

from prepserver.pipeline.sources.file_list import FileList
from prepserver.source.container import Container
from prepserver.source.filelist import list_places, parse_list
from prepserver.source.files import MASKS, check_folders, file_source, table_meta
from prepserver.source.progress import Progress
from prepserver.source.reader import Scan, ScanningReader
from prepserver.source.roots import Roots
from prepserver.source.samples import Source


class FileListReader(ScanningReader):
    """FileList."""

    kind = FileList
    spec: FileList

    def scan(self, progress: Progress, roots: Roots | None) -> Scan:
        """As `ScanningReader.scan`."""
        parsed = parse_list(self.spec.path, progress, roots, masks=bool(self.spec.masks))
        sections, base = parsed.table.sections(), os.fsencode(self._base) + b"/"
        places = list_places(parsed.table, base).found()
        if parsed.masks is not None:
            sections |= parsed.masks.sections(prefix=MASKS)
            places |= list_places(parsed.masks, base).found()
        if roots is not None:
            self.check_roots(sections.__getitem__, roots)
        progress.finished(len(parsed.table))
        meta = table_meta(parsed.table, parsed.classes, parsed.masks)
        meta |= {"mtime_ns": parsed.mtime_ns, "size_bytes": parsed.size_bytes}
        return Scan(meta, sections, [parsed.mtime_ns], places)

    @property
    def _base(self) -> str:
        return os.path.dirname(self.spec.path)

    def check_roots(self, sections: Callable[[str], memoryview], roots: Roots) -> None:
        """As `ScanningReader.check_roots`."""
        check_folders(sections, self._base, roots)
        if self.spec.masks:
            check_folders(sections, self._base, roots, prefix=MASKS)

    def is_current(self, container: Container) -> bool:
        """As `ScanningReader.is_current`."""
        status = os.stat(self.spec.path)
        return (status.st_mtime_ns, status.st_size) == (container.meta["mtime_ns"], container.meta["size_bytes"])

    def read_by(self, container: Container, roots: Roots | None) -> Source:
        """As `ScanningReader.read_by`."""
        return file_source(container, self._base, roots, self._base if self.spec.masks else None)
