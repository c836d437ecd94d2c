"""How `ImageFolder` is read: a scan of its tree, kept while no folder has another time."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable

from prepserver.pipeline.sources.image_folder import ImageFolder
from prepserver.source.container import Container
from prepserver.source.filelist import list_places
from prepserver.source.files import MASKS, FileTable, check_folders, file_source, table_meta
from prepserver.source.folder import scan_tree
from prepserver.source.progress import Progress
from prepserver.source.reader import Scan, ScanningReader
from prepserver.source.roots import Roots
from prepserver.source.samples import Source


class ImageFolderReader(ScanningReader):
    """ImageFolder."""

    kind = ImageFolder
    spec: ImageFolder

    def scan(self, progress: Progress, roots: Roots | None) -> Scan:
        """As `ScanningReader.scan`."""
        spec, tree = self.spec, scan_tree(self.spec.root, progress, roots)
        masks = None if spec.masks is None else _masks_of(tree.table)
        sections = tree.table.sections() | ({} if masks is None else masks.sections(prefix=MASKS))
        places = tree.places.found()
        if masks is not None:
            places |= list_places(masks, os.fsencode(str(spec.masks)) + b"/").found() | {str(spec.masks): b""}
        watched = {
            "watched": memoryview(b"\0".join(map(os.fsencode, tree.folders))),
            "watched_mtimes_ns": memoryview(array("q", tree.mtimes_ns)),
        }
        if roots is not None:
            self.check_roots(sections.__getitem__, roots)
        progress.finished(len(tree.table))
        meta = table_meta(tree.table, tree.classes, masks)
        return Scan(meta, sections | watched, tree.mtimes_ns, places)

    def check_roots(self, sections: Callable[[str], memoryview], roots: Roots) -> None:
        """As `ScanningReader.check_roots`."""
        check_folders(sections, self.spec.root, roots)
        if self.spec.masks is not None:
            check_folders(sections, self.spec.masks, roots, prefix=MASKS)

    def is_current(self, container: Container) -> bool:
        """As `ScanningReader.is_current`."""
        base = os.fsencode(self.spec.root) + b"/"
        folders = container.section("watched").split(b"\0")
        mtimes_ns = memoryview(container.section("watched_mtimes_ns")).cast("q")
        return all(
            os.stat(base + folder).st_mtime_ns == mtime_ns for folder, mtime_ns in zip(folders, mtimes_ns, strict=True)
        )

    def read_by(self, container: Container, roots: Roots | None) -> Source:
        """As `ScanningReader.read_by`."""
        return file_source(container, self.spec.root, roots, self.spec.masks)


def _masks_of(images: FileTable) -> FileTable:
    """For each image the mask of its name, as PNG."""
    masks, folders = FileTable(), images.folders
    for folder, name in images:
        masks.add(folders[folder], os.path.splitext(name)[0] + b".png", 0)
    return masks
