"""Scanning a tree of class folders, in torchvision's order.

The classes are the sorted names of the folders under the root. The samples of a class are its files with a
known ending, anywhere below, links followed, sorted by the path of their folder and then by name: what
``torchvision.datasets.ImageFolder`` gives, so that indices agree. Unlike it, a folder that may not be read
and a loop of links are errors: neither may silently change what is trained on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from prepserver.source.errors import SourceError, printable, unusable
from prepserver.source.files import FileTable
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.roots import Roots

# torchvision.datasets.folder.IMG_EXTENSIONS and .gif; compared in lower case.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")

_NAMED_AT_MOST = 5


@dataclass(frozen=True)
class ScannedTree:
    """What a scan saw.

    Attributes:
        table: The files.
        classes: Class names; a label is a place in this list.
        folders: Every folder that was listed, relative to the root; the root itself is "".
        mtimes_ns: The modification time of each, taken before it was listed.
        roots: Where folders must lie.
        places: Where the files really lie.
    """

    table: FileTable
    classes: list[str]
    folders: list[str]
    mtimes_ns: list[int]
    roots: Roots | None = None
    places: Places = field(default_factory=Places)


def scan_tree(root: str, progress: Progress, roots: Roots | None = None) -> ScannedTree:
    """List a tree.

    Args:
        root: Absolute path of the folder of class folders.
        progress: Told the number of images found.
        roots: Where every folder must lie, links followed.

    Raises:
        SourceError: Missing, not a folder, not readable, outside the roots, no classes, a class without images, a link
            loop.
    """
    tree = ScannedTree(FileTable(), [], [], [], roots)
    tree.places.add_folder(os.fsencode(root))
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
        for folder, images_here in sorted(_walk(tree, root, name, progress)):
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


def _walk(tree: ScannedTree, root: str, class_: str, progress: Progress) -> Iterator[tuple[str, list[str]]]:
    """Each folder of a class, relative to the root, with its sorted images."""
    pending: list[tuple[str, frozenset[tuple[int, int]], bool]] = [(class_, frozenset(), False)]
    while pending:
        folder, above, linked = pending.pop()
        path = f"{root}/{folder}"
        try:
            status = os.stat(path)
        except OSError as error:
            raise unusable("the folder", path, error) from error
        here = (status.st_dev, status.st_ino)
        # Only a link can lead back up, and some network file systems have no true inode numbers to compare.
        if linked and here in above:
            raise SourceError(f"the link {printable(path)} leads to a folder that it lies in; remove it")
        files, subfolders = _list(tree, root, folder)
        pending.extend((f"{folder}/{name}", above | {here}, link) for name, link in subfolders)
        yield folder, sorted(name for name in files if name.lower().endswith(EXTENSIONS))
        progress.found(len(tree.table))


def _list(tree: ScannedTree, root: str, folder: str) -> tuple[list[str], list[tuple[str, bool]]]:
    """Files, and folders with whether they are links; notes the folder as one that was seen."""
    path = f"{root}/{folder}" if folder else root
    files: list[str] = []
    subfolders: list[tuple[str, bool]] = []
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if tree.roots is not None:
                tree.roots.check_open(descriptor, "the folder", path)
            # The time comes first: what changes while the names are read must look changed afterwards.
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
