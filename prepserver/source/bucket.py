"""A tree of class folders in a bucket: folders are what the names of objects have before their slashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from prepserver.pipeline.spec import digest_of
from prepserver.source.errors import SampleError, unusable
from prepserver.source.progress import Progress
from prepserver.source.storage import remote_files

_AT_ONCE = 16
"""Class folders that are listed in parallel: a store gives 1000 names for a request."""


class Bucket:
    """What lies below a URL, listed class folder by class folder.

    Args:
        url: The folder of class folders.
        progress: Told of all objects.

    Attributes:
        classes: Names of the folders, in no order.
        loose: Names of the objects that lie in no folder.

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
            folders = progress.over(self._listed, self.classes, _AT_ONCE, lambda: self._found)
        except SampleError as error:
            raise unusable("the folder", url, error) from error
        self._folders = dict(zip(self.classes, folders, strict=True))

    def walk(self, class_: str) -> Iterator[tuple[str, list[remote_files.Entry]]]:
        """Yield each folder of a class, relative to the URL, with its objects, whose paths are names there."""
        yield from self._folders[class_].items()

    @property
    def state(self) -> str:
        """A digest of all objects and their versions."""
        digest = hashlib.sha256()
        for class_ in sorted(self.classes):
            digest.update(digest_of([class_, sorted(self.walk(class_))]).encode())
        return digest.hexdigest()

    def _listed(self, class_: str) -> dict[str, list[remote_files.Entry]]:
        folders: dict[str, list[remote_files.Entry]] = {}
        for objects in remote_files.descendants(f"{self._url}/{class_}"):
            for path, size, version in objects:
                below, slash, name = path.rpartition("/")
                folders.setdefault(class_ + "/" * bool(slash) + below, []).append(
                    remote_files.Entry(name, size, version)
                )
            self._found += len(objects)  # only for people: threads may lose a count
        return folders
