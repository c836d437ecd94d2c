"""Files that a path with braces and wildcards names, on this machine or in a bucket."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase

from prepserver.pipeline.source import short
from prepserver.pipeline.urls import is_url, split
from prepserver.source.errors import SourceError, unusable
from prepserver.source.roots import Roots, open_below
from prepserver.source.storage import remote_files

_WILD = frozenset("*?[")
_MOST_PATHS = 1_000_000
_MOST_BRACES = 100  # of a path: `expand` calls itself for each


def expand(pattern: str) -> list[str]:
    """Return the paths that a pattern names, in order: ``{a,b}``, and ``{000..127}`` padded like its first number.

    Raises:
        SourceError: It names too many paths, or its braces are not of these forms.
    """
    head, brace, rest = pattern.partition("{")
    if not brace:
        return [pattern]
    if (braces := pattern.count("{")) > _MOST_BRACES:
        raise SourceError(f"{short(pattern)} has {braces} braces, and at most {_MOST_BRACES} are expanded")
    inside, closed, tail = rest.partition("}")
    if not closed or not inside:
        raise SourceError(f"{pattern}: braces must hold names, as in {{a,b}}, or a range, as in {{000..127}}")
    first, dots, last = inside.partition("..")
    if dots:
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) <= int(first) + _MOST_PATHS):
            raise SourceError(f"{pattern}: {{{inside}}} is not a range; write it as {{000..127}}")
        names = [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]
    else:
        names = inside.split(",")
    tails = expand(tail)
    if len(names) * len(tails) > _MOST_PATHS:
        raise SourceError(f"{pattern} names more than {_MOST_PATHS} files, the limit")
    return [f"{head}{name}{each}" for name in names for each in tails]


def files_of(patterns: Sequence[str], roots: Roots) -> list[str]:
    """Return the files that patterns name, in the order of the patterns; what wildcards match is sorted.

    Raises:
        OutsideRootsError: A folder in which names are matched lies outside the roots.
        SourceError: A folder cannot be listed, or a pattern matches no file, or one is named twice.
    """
    found = [path for pattern in patterns for each in expand(pattern) for path in _matching(each, roots)]
    ((path, times),) = Counter(found).most_common(1)
    if times > 1:
        raise SourceError(f"{path} is named more than once")
    return found


def _matching(pattern: str, roots: Roots) -> list[str]:
    """Return the files that a pattern without braces names."""
    if _WILD.isdisjoint(pattern):
        return [pattern]
    is_remote = is_url(pattern)
    paths = [split(pattern)[0] if is_remote else ""]
    parts = pattern.removeprefix(paths[0]).strip("/").split("/")
    is_wild = False  # whether a part before had wildcards
    for place, part in enumerate(parts, 1):
        is_wild = not _WILD.isdisjoint(part) or (is_wild and is_remote)
        if is_wild:  # in a bucket, only a listing shows which folders exist
            paths = [
                f"{path}/{name}" for path in paths for name in _names(path or "/", part, place == len(parts), roots)
            ]
        else:
            paths = [f"{path}/{part}" for path in paths]
    if not is_remote:
        for path in paths:  # before `isfile`, which would reveal what exists outside
            roots.check_path("the file", path)
        paths = [path for path in paths if os.path.isfile(path)]
    if not paths:
        raise SourceError(f"no file matches {pattern}")
    return paths


def _names(folder: str, pattern: str, is_last: bool, roots: Roots) -> list[str]:
    """Return the sorted names in a folder that match; hidden ones only if the pattern begins with a dot.

    In a bucket they are those of objects, if they are the last part of a path, and of folders otherwise.
    """
    try:
        if is_url(folder):
            folders, objects = remote_files.children(folder)
            names = [each.path for each in objects] if is_last else folders
        else:
            descriptor = open_below(roots, "the folder", folder)
            try:
                names = os.listdir(descriptor) if stat.S_ISDIR(os.fstat(descriptor).st_mode) else []
            finally:
                os.close(descriptor)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unusable("the folder", folder, error) from error
    return sorted(name for name in names if fnmatchcase(name, pattern) and name.startswith(".") <= (pattern[0] == "."))
