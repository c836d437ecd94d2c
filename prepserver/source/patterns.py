"""Files that a path with braces and wildcards names, on this machine or in a bucket."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from fnmatch import fnmatchcase

from prepserver.pipeline.urls import is_url, split
from prepserver.source.errors import SourceError, unusable
from prepserver.source.roots import Roots, open_below
from prepserver.source.storage import remote_files
from prepserver.source.tar import expand

_WILD = frozenset("*?[")


def files_of(patterns: Sequence[str], roots: Roots | None) -> list[str]:
    """Return the files that patterns name, in the order of the patterns; what wildcards match is sorted.

    Raises:
        OutsideRootsError: A folder in which names are matched lies outside the roots.
        SourceError: A folder cannot be listed, or a pattern matches no file.
    """
    found = [path for pattern in patterns for each in expand(pattern) for path in _matching(each, roots)]
    if len(set(found)) < len(found):
        twice = next(path for path in found if found.count(path) > 1)
        raise SourceError(f"{twice} is named twice")
    return found


def _matching(pattern: str, roots: Roots | None) -> list[str]:
    if is_url(pattern):
        return _matching_objects(pattern)
    paths = [""]
    for part in pattern.strip("/").split("/"):
        if _WILD.isdisjoint(part):
            paths = [f"{path}/{part}" for path in paths]
        else:
            paths = [f"{path}/{name}" for path in paths for name in _names(path or "/", part, roots)]
    if _WILD.isdisjoint(pattern):
        return paths
    if roots is not None:
        for path in paths:  # before a link could tell what exists outside
            roots.check_path("the file", path)
    files = [path for path in paths if os.path.isfile(path)]
    if not files:
        raise SourceError(f"no file matches {pattern}")
    return files


def _matching_objects(pattern: str) -> list[str]:
    if _WILD.isdisjoint(pattern):
        return [pattern]
    paths = [split(pattern)[0]]
    *folders, last = pattern.removeprefix(paths[0] + "/").split("/")
    wild = False
    for part in folders:
        wild = wild or not _WILD.isdisjoint(part)
        paths = [f"{path}/{name}" for path in paths for name in (_objects(path, part, 0) if wild else [part])]
    found = [f"{path}/{name}" for path in paths for name in _objects(path, last, 1)]
    if not found:
        raise SourceError(f"no file matches {pattern}")
    return found


def _objects(folder: str, pattern: str, which: int) -> list[str]:
    """As `_names`, of a bucket: `which` is 0 for folders, 1 for objects."""
    try:
        folders, entries = remote_files.children(folder)
    except OSError as error:
        raise unusable("the folder", folder, error) from error
    return _chosen([entry.path for entry in entries] if which else folders, pattern)


def _names(folder: str, pattern: str, roots: Roots | None) -> list[str]:
    """Return the sorted names in a folder that match; hidden ones only if the pattern begins with a dot."""
    try:
        descriptor = open_below(roots, "the folder", folder)
        try:
            if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
                return []
            names = os.listdir(descriptor)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unusable("the folder", folder, error) from error
    return _chosen(names, pattern)


def _chosen(names: list[str], pattern: str) -> list[str]:
    return sorted(name for name in names if fnmatchcase(name, pattern) and name.startswith(".") <= (pattern[0] == "."))
