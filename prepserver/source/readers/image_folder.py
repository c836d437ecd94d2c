"""How `ImageFolder` is read: a scan of a tree of class folders, in torchvision's order.

The classes are the sorted names of the folders under the root. The samples of a class are its files with a known
ending, anywhere below, links followed, sorted by the path of their folder and then by name. This is the order of
``torchvision.datasets.ImageFolder``, so indices agree. Unlike there, an unreadable folder and a loop of links are
errors: neither may silently change the training data. The index stays valid while no folder changes its time. A bucket
is listed again each time.
"""

from __future__ import annotations

import os
from array import array

from prepserver.pipeline.sources.image_folder import ImageFolder
from prepserver.pipeline.urls import is_url
from prepserver.source.container import Container
from prepserver.source.errors import SourceError, printable
from prepserver.source.files import FileTable, FileTableReader
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.reader import Scan
from prepserver.source.trees import EXTENSIONS, Bucket, LocalTree, is_image

_NAMED_AT_MOST = 5


class ImageFolderReader(FileTableReader):
    spec: ImageFolder

    def scan(self, progress: Progress) -> Scan:
        root, places, masks = self.spec.root, Places(), None
        places.add_folder(root)
        tree = Bucket(root, progress) if is_url(root) else LocalTree(root, places, progress, self.roots)
        files = FileTable(root)
        versions = _fill(files, tree)
        if self.spec.masks is not None:
            masks, folders = FileTable(self.spec.masks), files.folders
            for folder, name in files:
                masks.add(folders[folder] + os.path.splitext(name)[0] + b".png", 0)
            places.add_folder(self.spec.masks)
            masks.add_to(places)
        meta, sections = files.contents(sorted(tree.classes), masks, versions)
        if isinstance(tree, Bucket):
            return Scan(meta | {"versions": True, "state": tree.state}, sections, places)
        mtimes_ns = array("q", (mtime_ns for _, mtime_ns in tree.watched))
        sections["watched"] = memoryview(b"\0".join(os.fsencode(folder) for folder, _ in tree.watched))
        sections["watched_mtimes_ns"] = memoryview(mtimes_ns)
        return Scan(meta, sections, places, mtimes_ns=mtimes_ns)

    def is_current(self, container: Container) -> bool:
        if is_url(self.spec.root):
            return False  # folders of a bucket have no times: it must be listed again
        base = os.fsencode(self.spec.root) + b"/"
        folders = container.section("watched").split(b"\0")
        mtimes_ns = memoryview(container.section("watched_mtimes_ns")).cast("q")
        return all(
            os.stat(base + folder).st_mtime_ns == mtime_ns for folder, mtime_ns in zip(folders, mtimes_ns, strict=True)
        )


def _fill(table: FileTable, tree: LocalTree | Bucket) -> list[array[int]]:
    """Add the images of a tree to a table; return sizes and versions of those in a bucket."""
    if not tree.classes:
        images = sum(map(is_image, tree.loose))
        raise SourceError(
            f"no class folders in {table.base}; ImageFolder expects {table.base}/<class>/<image>"
            + (f". {images} images lie in the folder itself: move them into one, or use FileList" * bool(images))
        )
    versions = [array("Q"), array("Q")] if isinstance(tree, Bucket) else []
    empty: list[str] = []
    for label, class_ in enumerate(sorted(tree.classes)):
        before = len(table)
        for folder, names, found in sorted(tree.walk(class_)):
            encoded = os.fsencode(folder + "/")
            for name in names:
                table.add(encoded + os.fsencode(name), label)
            for column, numbers in zip(versions, zip(*found, strict=True), strict=False):  # none in an empty folder
                column.extend(numbers)
        if len(table) == before:
            empty.append(class_)
    if empty:
        shown = printable(", ".join(empty[:_NAMED_AT_MOST])) + (", ..." if len(empty) > _NAMED_AT_MOST else "")
        raise SourceError(
            f"{len(empty)} of {len(tree.classes)} class folders in {table.base} hold no images: {shown}. "
            f"Looked for names that end in {' '.join(EXTENSIONS)}; remove the folders or fill them"
        )
    return versions
