"""How `ImageFolder` is read: a scan of a tree of class folders, in torchvision's order.

The classes are the sorted names of the folders under the root. The samples of a class are its files with a known
ending, anywhere below, links followed, sorted by the path of their folder and then by name. This is the order of
``torchvision.datasets.ImageFolder``, so indices agree. Unlike there, an unreadable folder and a loop of links are
errors: neither may silently change what is trained on. The index stays valid while no folder changes its time. A bucket
is listed anew each time.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prepserver.pipeline.sources.image_folder import ImageFolder
from prepserver.pipeline.urls import is_url
from prepserver.source.bucket import Bucket
from prepserver.source.container import Container
from prepserver.source.errors import SourceError, printable, unusable
from prepserver.source.files import MASKS, FileSource, FileTable, check_folders, table_meta
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.reader import Scan, ScanningReader
from prepserver.source.roots import Roots
from prepserver.source.samples import Source

# torchvision.datasets.folder.IMG_EXTENSIONS and .gif; compared in lower case.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")

_NAMED_AT_MOST = 5


class ImageFolderReader(ScanningReader):
    kind = ImageFolder
    spec: ImageFolder

    def scan(self, progress: Progress, roots: Roots | None) -> Scan:
        tree, root = scan_tree(self.spec.root, progress, roots), self.spec.masks
        sections = tree.table.sections(*tree.versions)
        sections["watched"] = memoryview(b"\0".join(map(os.fsencode, tree.folders)))
        sections["watched_mtimes_ns"] = memoryview(array("q", tree.mtimes_ns))
        masks = None
        if root is not None:
            masks, folders = FileTable(), tree.table.folders
            for folder, name in tree.table:
                masks.add(folders[folder], os.path.splitext(name)[0] + b".png", 0)
            sections |= masks.sections(prefix=MASKS)
            tree.places.add_folder(os.fsencode(root))
            masks.add_to(tree.places, os.fsencode(root) + b"/")
        if roots is not None:
            self.check_roots(sections.__getitem__, roots)
        progress.finished(len(tree.table))
        meta = table_meta(tree.table, tree.classes, masks) | {"versions": bool(tree.versions)}
        return Scan(meta, sections, tree.mtimes_ns, tree.places.found(), tree.state)

    def check_roots(self, sections: Callable[[str], memoryview], roots: Roots) -> None:
        check_folders(sections, self.spec.root, roots)
        if self.spec.masks is not None:
            check_folders(sections, self.spec.masks, roots, prefix=MASKS)

    def is_current(self, container: Container) -> bool:
        if is_url(self.spec.root):
            return False  # a bucket has no times of folders: listing it again is the question
        base = os.fsencode(self.spec.root) + b"/"
        folders = container.section("watched").split(b"\0")
        mtimes_ns = memoryview(container.section("watched_mtimes_ns")).cast("q")
        return all(
            os.stat(base + folder).st_mtime_ns == mtime_ns for folder, mtime_ns in zip(folders, mtimes_ns, strict=True)
        )

    def read_by(self, container: Container, roots: Roots | None) -> Source:
        return FileSource(container, self.spec.root, roots, self.spec.masks)


@dataclass
class ScannedTree:
    """What a scan found.

    Attributes:
        roots: Where folders must lie.
        table: The files.
        classes: Class names; a label is a place in this list.
        folders: Every folder that was listed, relative to the root; the root itself is "".
        mtimes_ns: The modification time of each folder, taken before it was listed.
        places: Where the files really lie.
        versions: For objects in a bucket, the size and the `version_of` of each; else empty.
        state: See `Scan`.
    """

    roots: Roots | None = None
    table: FileTable = field(default_factory=FileTable)
    classes: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    mtimes_ns: list[int] = field(default_factory=list)
    places: Places = field(default_factory=Places)
    versions: list[array[int]] = field(default_factory=list)
    state: str = ""


def scan_tree(root: str, progress: Progress, roots: Roots | None = None) -> ScannedTree:
    """List a tree of class folders, all of which must lie in the roots.

    Raises:
        SourceError: A folder is missing, unreadable, outside the roots or no folder; there are no classes, or a class
            without images; or a link leads back up.
    """
    tree = ScannedTree(roots)
    tree.places.add_folder(os.fsencode(root))
    bucket = Bucket(root, progress) if is_url(root) else None
    if bucket is not None:
        loose = bucket.loose
        tree.classes.extend(sorted(bucket.classes))
        tree.versions.extend((array("Q"), array("Q")))
        tree.state = bucket.state
    else:
        loose, subfolders = _list(tree, root, "")
        tree.classes.extend(sorted(name for name, _ in subfolders))
    if not tree.classes:
        images = sum(name.lower().endswith(EXTENSIONS) for name in loose)
        raise SourceError(
            f"no class folders in {root}; ImageFolder expects {root}/<class>/<image>"
            + (f". {images} images lie in the folder itself: move them into one, or use FileList" * bool(images))
        )
    empty: list[str] = []
    for label, name in enumerate(tree.classes):
        before = len(tree.table)
        walk = _walk(tree, root, name, progress) if bucket is None else _images(tree, bucket, name)
        for folder, images_here in walk:
            encoded = os.fsencode(folder + "/")
            for image in images_here:
                tree.table.add(encoded, os.fsencode(image), label)
            progress.found(len(tree.table))
        if len(tree.table) == before:
            empty.append(name)
    if empty:
        shown = printable(", ".join(empty[:_NAMED_AT_MOST])) + (", ..." if len(empty) > _NAMED_AT_MOST else "")
        raise SourceError(
            f"{len(empty)} of {len(tree.classes)} class folders in {root} hold no images: {shown}. "
            f"Looked for names that end in {' '.join(EXTENSIONS)}; remove the folders or fill them"
        )
    return tree


def _images(tree: ScannedTree, bucket: Bucket, class_: str) -> Iterator[tuple[str, list[str]]]:
    """As `_walk`, in a bucket; note size and version of each image."""
    for folder, objects in sorted(bucket.walk(class_)):
        images = sorted(each for each in objects if each.path.lower().endswith(EXTENSIONS))
        for numbers, which in zip(tree.versions, ("size", "version"), strict=True):
            numbers.extend(getattr(each, which) for each in images)
        yield folder, [each.path for each in images]


def _walk(tree: ScannedTree, root: str, class_: str, progress: Progress) -> list[tuple[str, list[str]]]:
    """Return the folders of a class, relative to the root, each with its images; both are sorted."""
    return sorted(_folders(tree, root, class_, progress))


def _folders(tree: ScannedTree, root: str, class_: str, progress: Progress) -> Iterator[tuple[str, list[str]]]:
    pending: list[tuple[str, frozenset[tuple[int, int]], bool]] = [(class_, frozenset(), False)]
    while pending:
        folder, above, linked = pending.pop()
        path = f"{root}/{folder}"
        try:
            status = os.stat(path)
        except OSError as error:
            raise unusable("the folder", path, error) from error
        here = (status.st_dev, status.st_ino)
        # Only a link can lead back up; others are not compared, for some network file systems lack true inode numbers.
        if linked and here in above:
            raise SourceError(f"the link {printable(path)} leads to a folder that it lies in; remove it")
        files, subfolders = _list(tree, root, folder)
        pending.extend((f"{folder}/{name}", above | {here}, link) for name, link in subfolders)
        yield folder, sorted(name for name in files if name.lower().endswith(EXTENSIONS))
        progress.found(len(tree.table))


def _list(tree: ScannedTree, root: str, folder: str) -> tuple[list[str], list[tuple[str, bool]]]:
    """Return the files of a folder, and its folders with whether they are links; note the folder as listed."""
    path = f"{root}/{folder}" if folder else root
    files: list[str] = []
    subfolders: list[tuple[str, bool]] = []
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if tree.roots is not None:
                tree.roots.check_open(descriptor, "the folder", path)
            # The time comes first: a change while the names are read must show afterwards.
            mtime_ns = os.fstat(descriptor).st_mtime_ns
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    linked = entry.is_symlink()
                    if entry.is_dir():
                        subfolders.append((entry.name, linked))
                        if linked:
                            tree.places.add_folder(os.fsencode(f"{path}/{entry.name}"))
                    else:
                        files.append(entry.name)
                        if linked and folder and entry.name.lower().endswith(EXTENSIONS):
                            tree.places.add_file(os.fsencode(f"{path}/{entry.name}"))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unusable("the folder", path, error) from error
    tree.folders.append(folder)
    tree.mtimes_ns.append(mtime_ns)
    return files, subfolders
