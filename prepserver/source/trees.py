"""Trees of class folders: the images of each class, on this machine or in a bucket.

In a bucket, the parts of an object's name before its slashes are its folders.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator

from prepserver.pipeline.spec import digest_of
from prepserver.source.errors import SampleError, SourceError, printable, unusable
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.roots import Roots
from prepserver.source.storage import remote_files
from prepserver.source.storage.remote_files import Entry

# torchvision.datasets.folder.IMG_EXTENSIONS and .gif; compared in lower case.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif")

_AT_ONCE = 16  # class folders of a bucket that are listed in parallel: a store gives 1000 names for a request


Folder = tuple[str, list[str], list[tuple[int, int]]]
"""(path below the root, sorted names of its images, and in a bucket their sizes and versions)."""


def is_image(name: str) -> bool:
    """Say whether a file counts as an image."""
    return name.lower().endswith(EXTENSIONS)


def _is_folder(entry: os.DirEntry[str], folder: str) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # of where a link leads
        raise unusable("the target of the link", f"{folder}/{entry.name}", error) from error


class LocalTree:
    """A tree on this machine, listed while it is walked; the places to which links lead are added to `places`.

    Raises:
        SourceError: It is missing, unreadable, outside the roots, or not a folder.
    """

    def __init__(self, root: str, places: Places, progress: Progress, roots: Roots) -> None:
        self._root, self._places, self._progress, self._roots = root, places, progress, roots
        self.watched: list[tuple[str, int]] = []  # listed folders, below the root, each with its time before listing
        self._found = 0
        self.loose, folders = self._list("")  # `loose`: names of files that lie in no class folder
        self.classes = [name for name, _ in folders]  # in any order

    def walk(self, class_: str) -> Iterator[Folder]:
        """Yield each folder of a class; raises `SourceError` for one that is unreadable, outside, or above itself."""
        pending: list[tuple[str, frozenset[tuple[int, int]], bool]] = [(class_, frozenset(), False)]
        while pending:
            folder, above, linked = pending.pop()
            path = f"{self._root}/{folder}"
            try:
                status = os.stat(path)
            except OSError as error:
                raise unusable("the folder", path, error) from error
            here = (status.st_dev, status.st_ino)
            # Only a link can lead back up; others are not compared: some network file systems lack true inode numbers.
            if linked and here in above:
                raise SourceError(f"the link {printable(path)} leads to a folder that it lies in; remove it")
            files, folders = self._list(folder)
            pending.extend((f"{folder}/{name}", above | {here}, link) for name, link in folders)
            images = sorted(name for name in files if name.lower().endswith(EXTENSIONS))
            self._found += len(images)
            self._progress.found(self._found)
            yield folder, images, []

    def _list(self, folder: str) -> tuple[list[str], list[tuple[str, bool]]]:
        """Return the files of a folder, and its folders with whether they are links."""
        path = f"{self._root}/{folder}" if folder else self._root
        files: list[str] = []
        folders: list[tuple[str, bool]] = []
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._roots.check_open(descriptor, "the folder", path)
                # The time comes first: a change while the names are read must show afterwards.
                self.watched.append((folder, os.fstat(descriptor).st_mtime_ns))
                with os.scandir(descriptor) as entries:
                    for entry in entries:
                        linked = entry.is_symlink()
                        if _is_folder(entry, path):
                            folders.append((entry.name, linked))
                            if linked:
                                self._places.add_folder(f"{path}/{entry.name}")
                        else:
                            files.append(entry.name)
                            if linked and folder and is_image(entry.name):
                                self._places.add_file(f"{path}/{entry.name}")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise unusable("the folder", path, error) from error
        return files, folders


class Bucket:
    """A tree below a URL, listed class folder by class folder; used as a `LocalTree`.

    Raises:
        SourceError: It cannot be listed.
        OutsideRootsError: The configuration does not name it.
    """

    def __init__(self, url: str, progress: Progress) -> None:
        self._url = url
        self._found = 0
        try:
            self.classes, objects = remote_files.children(url)
            self.loose = [each.path for each in objects if each.path]
            folders = progress.over(self._listed, self.classes, _AT_ONCE, lambda: self._found, remote=True)
        except SampleError as error:
            raise unusable("the folder", url, error) from error
        self._folders = dict(zip(self.classes, folders, strict=True))

    def walk(self, class_: str) -> Iterator[Folder]:
        """Yield each folder of a class."""
        for folder, objects in self._folders[class_].items():
            images = sorted(each for each in objects if is_image(each.path))
            yield folder, [each.path for each in images], [(each.size, each.version) for each in images]

    @property
    def state(self) -> str:
        """A digest of all objects and their versions."""
        digest = hashlib.sha256()
        for class_ in sorted(self.classes):
            digest.update(digest_of([class_, sorted(self._folders[class_].items())]).encode())
        return digest.hexdigest()

    def _listed(self, class_: str) -> dict[str, list[Entry]]:
        folders: defaultdict[str, list[Entry]] = defaultdict(list)
        for objects in remote_files.descendants(f"{self._url}/{class_}"):
            for path, size, version in objects:
                below, slash, name = path.rpartition("/")
                folders[class_ + "/" * bool(slash) + below].append(Entry(name, size, version))
            self._found += len(objects)  # only to show progress: threads may lose a count
        return folders
