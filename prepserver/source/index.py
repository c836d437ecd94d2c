"""From a spec to a ready index, and from an index to an open source: the two verbs of this package.

`build_index` runs once, in the daemon; `open_source` runs in every worker and takes what the first one
wrote. An index is taken from the cache if nothing that it was built from has changed: the modification time
of every folder that was listed, or that of the list file and its size. A packed dataset brings its own.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never

from prepserver.pipeline.sources import FileList, ImageFolder, Packed, SourceSpec, SyntheticImages
from prepserver.source.cache import IndexCache
from prepserver.source.container import BrokenContainerError, Container
from prepserver.source.errors import SourceError
from prepserver.source.filelist import list_places, parse_list
from prepserver.source.files import FileSource, FileTable
from prepserver.source.folder import scan_tree
from prepserver.source.packed import (
    PackedSource,
    check_shards,
    find_index,
    info_of,
    open_index,
    packed_places,
)
from prepserver.source.places import still_lead
from prepserver.source.progress import Progress
from prepserver.source.roots import Roots
from prepserver.source.samples import Source
from prepserver.source.synthetic import BANK_VERSION, SyntheticSource, draw_bank

# Times of files are coarse: a tick of 4 ms locally, 1 or 2 s on some network and older file systems. A folder
# that changed this shortly before its scan may change again without a new time, so such an index is used
# once and not trusted later (git's "racily clean" entries).
_COARSEST_TIME_NS = 2 * 10**9

_Scanned = ImageFolder | FileList | SyntheticImages


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """What is known of a dataset once it is indexed.

    Attributes:
        path: The index file; it never changes.
        n: Number of samples, at least 1.
        num_classes: Labels are below it.
        digest: Hex SHA-256 of spec and content: the identity of the source. Two folders with equal names
            inside (a resized copy, say) differ in it.
        content_digest: Hex SHA-256 of labels, relative paths and class names alone: what stays the same when
            a dataset is moved.
        places: Folders below which all lies that `open_source` and `Source.read` open.
    """

    path: Path
    n: int
    num_classes: int
    digest: str
    content_digest: str
    places: tuple[str, ...]


def build_index(
    spec: SourceSpec,
    cache_dir: Path,
    report: Callable[[int], None] = lambda _found: None,
    roots: Roots | None = None,
) -> IndexInfo:
    """Index a dataset, or find the index that is still good.

    Args:
        spec: The dataset.
        cache_dir: Folder of index files; created with mode 0700.
        report: Called while scanning with the number of files found, about ten times a second at most, and
            once with the final number; not called if the cache has the index. What it raises ends the scan.
        roots: Where the dataset must lie: its list, every folder of it, the folders that a list names. Files are
            checked when they are opened, see `open_source`.

    Raises:
        SourceError: The dataset cannot be used, or the cache cannot be written; the text says what to do.
        OutsideRootsError: Which is one: the dataset does not lie in the roots.
    """
    if roots is not None and not isinstance(spec, SyntheticImages):
        # First of all, so that what is outside is told from nothing that is said about it.
        roots.check_path(*_named(spec))
    if isinstance(spec, Packed):
        return _packed(spec, roots)
    cache = IndexCache(cache_dir)
    key = _key(spec)
    for path, container in cache.candidates(key):
        if _is_current(spec, container):
            if not isinstance(spec, SyntheticImages):
                _check_folders(spec, {name: memoryview(container.section(name)) for name in _FOLDERS}, roots)
            return _info(spec, path, container.meta, _places_in(container))
    started_ns = cache.clock_ns()
    scan = _scan(spec, Progress(report), roots)
    ended_ns = cache.clock_ns()
    # A time from the future is no reason for doubt: whatever changes next gets the present one.
    settled = not any(
        started_ns - _COARSEST_TIME_NS <= mtime_ns <= ended_ns + _COARSEST_TIME_NS for mtime_ns in scan.mtimes_ns
    )
    meta = {"key": key, "settled": settled, **scan.meta}
    sections = scan.sections | {"places": memoryview(b"\0".join(_flat(scan.places)))}
    return _info(spec, cache.publish(key, meta["content_digest"], meta, sections), meta, scan.places)


def open_source(spec: SourceSpec, index_path: Path, roots: Roots | None = None) -> Source:
    """Open a dataset by its index, which is read once to compare its checksum: 5 ms for a million files.

    Args:
        spec: The spec that the index was built from.
        index_path: `IndexInfo.path`.
        roots: Where every file must lie that is read from now on; one that does not is a bad sample.

    Raises:
        SourceError: The index is gone, damaged, or of another dataset.
    """
    if isinstance(spec, Packed):
        return PackedSource(open_index(index_path, roots), spec.root, roots)
    try:
        container = Container(index_path)
        if container.meta.get("key") != _key(spec):
            raise SourceError(f"the index {index_path} belongs to another dataset")
        match spec:
            case ImageFolder():
                return FileSource(container, spec.root, roots)
            case FileList():
                return FileSource(container, os.path.dirname(spec.path), roots)
            case SyntheticImages():
                return SyntheticSource(container, spec)
            case _ as unknown:
                assert_never(unknown)
    except (OSError, BrokenContainerError) as error:
        raise SourceError(f"cannot open the index {index_path}: {error}; attach again to have it rebuilt") from error


def _packed(spec: Packed, roots: Roots | None) -> IndexInfo:
    """Check a packed dataset, whose index is ready."""
    root = Path(spec.root)
    path = find_index(root)
    container = open_index(path, roots)
    check_shards(root, container, roots)
    n, num_classes, packed, content = info_of(container)
    # One folder may hold other encodings of the same samples later: they are another source.
    digest = hashlib.sha256(f"{spec.digest} {packed}".encode()).hexdigest()
    return IndexInfo(path, n, num_classes, digest, content, tuple(packed_places(root, path, container).found()))


def _key(spec: _Scanned) -> str:
    """The name of a spec in the cache. A bank serves any number of samples and classes."""
    if isinstance(spec, SyntheticImages):
        what = f"SyntheticImages bank {BANK_VERSION} {spec.seed} {spec.height} {spec.width}"
        return hashlib.sha256(what.encode()).hexdigest()[:32]
    return spec.digest[:32]


@dataclass(frozen=True)
class _Scan:
    """What goes into a new index, and the times of all that it was made from."""

    meta: dict[str, Any]
    sections: dict[str, memoryview]
    mtimes_ns: list[int]
    places: dict[str, bytes]


def _flat(places: dict[str, bytes]) -> Iterator[bytes]:
    for place, via in places.items():
        yield place.encode()
        yield via


def _places_in(container: Container) -> dict[str, bytes]:
    flat = iter(bytes(container.section("places")).split(b"\0"))
    return {place.decode(): via for place, via in zip(flat, flat, strict=False)}  # of nothing, one empty part


_FOLDERS = ("folder_names", "folder_ends")


def _named(spec: ImageFolder | FileList | Packed) -> tuple[str, str]:
    """The path that a spec names, and what it is, for errors."""
    match spec:
        case ImageFolder():
            return "the folder", spec.root
        case FileList():
            return "the list", spec.path
        case Packed():
            return "the packed dataset", spec.root
        case _ as unknown:
            assert_never(unknown)


def _check_folders(spec: ImageFolder | FileList, sections: Mapping[str, memoryview], roots: Roots | None) -> None:
    """Whether every folder that holds files of the index lies in the roots."""
    if roots is None:
        return
    base = os.fsencode(spec.root if isinstance(spec, ImageFolder) else os.path.dirname(spec.path)) + b"/"
    names, ends = sections["folder_names"].cast("B"), sections["folder_ends"].cast("B").cast("Q")
    for start, end in itertools.pairwise(ends):
        folder = bytes(names[start:end])
        roots.check_path("the folder", folder if folder.startswith(b"/") else base + folder)


def _scan(spec: _Scanned, progress: Progress, roots: Roots | None) -> _Scan:
    match spec:
        case ImageFolder():
            tree = scan_tree(spec.root, progress, roots)
            watched = {
                "watched": memoryview(b"\0".join(map(os.fsencode, tree.folders))),
                "watched_mtimes_ns": memoryview(array("q", tree.mtimes_ns)),
            }
            sections = tree.table.sections()
            _check_folders(spec, sections, roots)
            progress.finished(len(tree.table))
            meta = _table_meta(tree.table, tree.classes)
            return _Scan(meta, sections | watched, tree.mtimes_ns, tree.places.found())
        case FileList():
            parsed = parse_list(spec.path, progress, roots)
            sections = parsed.table.sections()
            _check_folders(spec, sections, roots)
            places = list_places(parsed.table, os.fsencode(os.path.dirname(spec.path)) + b"/")
            progress.finished(len(parsed.table))
            meta = _table_meta(parsed.table, parsed.classes)
            meta |= {"mtime_ns": parsed.mtime_ns, "size_bytes": parsed.size_bytes}
            return _Scan(meta, sections, [parsed.mtime_ns], places.found())
        case SyntheticImages():
            bank = draw_bank(spec)
            progress.finished(spec.n)
            return _Scan({"content_digest": hashlib.sha256(bank["jpegs"]).hexdigest()}, bank, [], {})
        case _ as unknown:
            assert_never(unknown)


def _table_meta(table: FileTable, classes: list[str]) -> dict[str, Any]:
    return {
        "n": len(table),
        "classes": classes,
        "num_classes": len(classes) or table.max_label + 1,
        "content_digest": table.digest(classes),
    }


def _is_current(spec: _Scanned, container: Container) -> bool:
    """Whether all that the index was built from is as it was; about 2 us for each folder."""
    meta = container.meta
    if not meta["settled"]:
        return False
    try:
        if not still_lead(_places_in(container).items()):
            return False
        match spec:
            case ImageFolder():
                base = os.fsencode(spec.root) + b"/"
                folders = container.section("watched").split(b"\0")
                mtimes_ns = memoryview(container.section("watched_mtimes_ns")).cast("q")
                return all(
                    os.stat(base + folder).st_mtime_ns == mtime_ns
                    for folder, mtime_ns in zip(folders, mtimes_ns, strict=True)
                )
            case FileList():
                status = os.stat(spec.path)
                return (status.st_mtime_ns, status.st_size) == (meta["mtime_ns"], meta["size_bytes"])
            case SyntheticImages():
                return True
            case _ as unknown:
                assert_never(unknown)
    except (OSError, BrokenContainerError):
        # The scan that follows says what is wrong, in words; an older release kept no places.
        return False


def _info(spec: _Scanned, path: Path, meta: dict[str, Any], found: Mapping[str, bytes]) -> IndexInfo:
    places = (*found, str(path.parent))
    content = meta["content_digest"]
    digest = hashlib.sha256(f"{spec.digest} {content}".encode()).hexdigest()
    if isinstance(spec, SyntheticImages):
        return IndexInfo(path, spec.n, spec.num_classes, digest, content, places)
    return IndexInfo(path, meta["n"], meta["num_classes"], digest, content, places)
