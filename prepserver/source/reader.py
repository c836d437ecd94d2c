"""Readers: they list a dataset, check whether a listing is current, and read samples by it."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from prepserver.pipeline.source import SourceSpec
from prepserver.pipeline.urls import is_url
from prepserver.source.cache import ListingCache
from prepserver.source.container import AGAIN, BrokenContainerError, Container
from prepserver.source.errors import SourceError
from prepserver.source.patterns import files_of
from prepserver.source.places import Places, still_lead
from prepserver.source.progress import Progress
from prepserver.source.roots import ANYWHERE, Roots
from prepserver.source.samples import Source
from prepserver.source.storage import File, open_file, statuses

# Times of files are coarse: a tick of 4 ms locally, 1 or 2 s on some network and older file systems. A folder
# that changed this shortly before its scan may change again without a new time, so such an index is used
# once and not trusted later (git calls such entries "racily clean").
_COARSEST_TIME_NS = 2 * 10**9

MAX_SAMPLES = 1 << 40  # of a source: orders and messages take no more

_AT_ONCE = 8  # files that are listed in parallel

Sections = dict[str, memoryview]  # bytes of an index, by name

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listing:
    """What was found in a dataset; digests are SHA-256 in hex."""

    path: Path  # the index file; it never changes
    samples: int  # at least 1
    num_classes: int  # labels are below this number; 0 if they are too great for a number of classes
    # Of spec and content: the identity of the source. It differs between two folders with equal names inside, such as a
    # resized copy.
    digest: str
    content_digest: str  # of labels, relative paths and class names alone: it stays when a dataset moves
    places: tuple[str, ...]  # folders that hold all files that `Reader.open` and `Source.read` open
    classes: tuple[str, ...] = ()  # see `Source.classes`
    # Ends of runs of samples that are decoded together; with more than `MAX_ROW_GROUPS`, neighbours count as one.
    row_groups: tuple[int, ...] = ()
    kept_rows: int = 0  # how many samples of such runs a worker keeps decoded
    # What all samples take when decoded, if in a shuffled order most of them would decode a large run; else 0.
    coarse_bytes: int = 0


@dataclass(frozen=True)
class Scan:
    """The content of a new index."""

    # Plain values, among them ``n``, ``num_classes`` and ``content_digest``; see `Listing`. ``state``, if present, is
    # a digest of sizes and versions: it distinguishes two states with equal ``content_digest``.
    meta: dict[str, Any]
    sections: Sections
    places: Places  # where the dataset's files lie
    files: Sequence[tuple[str, File]] = ()  # the files that the index was made from, each with its path
    mtimes_ns: Sequence[int] = ()  # the times of folders, and of files that are not in `files`


class Reader(ABC):
    """Reads one kind of source, which must lie below the roots. Indexers list it and workers read it."""

    source: Callable[[Container, Any, Roots], Source]  # what `read_by` calls by default
    edition: ClassVar[str] = ""  # changes when a release lists the same files in another way

    def __init__(self, spec: Any, roots: Roots) -> None:
        self.spec, self.roots = spec, roots

    @property
    def key(self) -> str:
        """The spec's name in the cache of indexes."""
        return f"{self.spec.digest[:32]}{self.edition}"

    @abstractmethod
    def index(self, cache_dir: Path, report: Callable[[int], None]) -> Listing:
        """See `prepserver.source.build_index`."""

    def read_by(self, container: Container) -> Source:
        """Open the source by an index; raises `OSError` if the index is damaged."""
        return type(self).source(container, self.spec, self.roots)

    def open(self, index_path: Path) -> Source:
        """See `prepserver.source.open_source`."""
        try:
            container = Container(index_path)
            if container.meta.get("key") != self.key:
                raise SourceError(f"the index {index_path} belongs to another dataset")
            return self.read_by(container)
        except OSError as error:
            # Only the text is kept: a name for the error would be a cycle through this frame, which holds the file.
            said = str(error) if isinstance(error, BrokenContainerError) else f"{index_path}: {error}; {AGAIN}"
            raise SourceError(f"cannot open the index {said}") from error


class ScanningReader(Reader):
    """A reader of a dataset that must be scanned. A cache keeps its indexes, which are used until something changes."""

    @abstractmethod
    def scan(self, progress: Progress) -> Scan:
        """List the dataset.

        Raises:
            SourceError: It cannot be used; the text says what to do.
            OutsideRootsError: It does not lie in the roots.
        """

    def is_current(self, container: Container) -> bool:
        """Say whether everything that an index was built from is unchanged: by default `Scan.files`. About 2 us a file.

        Raises:
            OSError: It has changed, or the index is damaged.
        """
        meta = container.meta
        return statuses(meta["files"]) == list(zip(meta["sizes"], meta["mtimes_ns"], strict=True))

    def check_roots(self, container: Container) -> None:
        """Raise `OutsideRootsError` if something that an index names lies outside: by default, of `Scan.files`."""
        for path in container.meta["files"]:
            self.roots.check_path("the file", path)

    def counts(self, meta: Mapping[str, Any]) -> tuple[int, int]:
        """Return the numbers of samples and of classes, from an index."""
        return meta["n"], meta["num_classes"]

    def row_groups(self, container: Container) -> tuple[tuple[int, ...], int, int]:
        """Return `row_groups`, `kept_rows` and `coarse_bytes` of the `Listing` of an index: by default, none."""
        return (), 0, 0

    def index(self, cache_dir: Path, report: Callable[[int], None]) -> Listing:
        cache = ListingCache(cache_dir)
        known = filter(self._is_good, cache.candidates(self.key))
        container = next(known, None) or self._listed(cache, Progress(report))
        if self.roots is not ANYWHERE:
            self.check_roots(container)
        meta = container.meta
        digest = hashlib.sha256(f"{self.spec.digest} {_version(meta)}".encode()).hexdigest()
        places, classes = (*meta["places"], str(cache.folder)), tuple(meta.get("classes", ()))
        content_digest, (groups, kept_rows, coarse) = meta["content_digest"], self.row_groups(container)
        return Listing(
            container.path, *self.counts(meta), digest, content_digest, places, classes, groups, kept_rows, coarse
        )

    def _is_good(self, container: Container) -> bool:
        try:
            return container.meta["settled"] and still_lead(container.meta["places"]) and self.is_current(container)
        except OSError:
            return False  # the scan that follows explains what is wrong

    def _listed(self, cache: ListingCache, progress: Progress) -> Container:
        started_ns = cache.clock_ns()
        scan = self.scan(progress)
        ended_ns = cache.clock_ns()
        times_ns = [*scan.mtimes_ns, *(file.version for path, file in scan.files if not is_url(path))]
        # A time from the future raises no doubt: the next change will get the present time.
        settled = not any(
            started_ns - _COARSEST_TIME_NS <= time_ns <= ended_ns + _COARSEST_TIME_NS for time_ns in times_ns
        )
        meta = {
            "key": self.key,
            "settled": settled,
            "places": scan.places.found(),
            "files": [path for path, _ in scan.files],
            "sizes": [file.size for _, file in scan.files],
            "mtimes_ns": [file.version for _, file in scan.files],
            **scan.meta,
        }
        n, _ = self.counts(meta)
        check_count(self.spec, n)
        progress.finished(n)
        if not times_ns and "state" in meta:  # a bucket is listed each time; an equal state means that nothing changed
            for container in cache.candidates(self.key):
                if _version(container.meta) == _version(meta):
                    return container
        return cache.publish(self.key, _version(meta), meta, scan.sections)


class FilesReader(ScanningReader, Generic[T]):
    """A reader of files that hold many samples; it lists them in parallel."""

    what: ClassVar[str] = "the file"  # in errors

    def files(self) -> list[str]:
        """Return the absolute paths of the files, in order: by default those that the spec's first path names.

        Raises:
            SourceError: It names no files, or one twice, or a folder cannot be listed.
        """
        return files_of([path for name, path in self.spec.named_paths() if name == self.spec.paths[0]], self.roots)

    @abstractmethod
    def list_file(self, path: str, file: File, found: Callable[..., None]) -> T:
        """Return the content of one file, in a thread; `found` is called for each sample, or with the number of some.

        Raises:
            SourceError: The file cannot be used; the text names it and says what to do.
            OSError: It cannot be read.
        """

    @abstractmethod
    def table(self, paths: list[str], files: list[T]) -> tuple[dict[str, Any], Sections]:
        """Return metadata and sections of the index of all files; raises `SourceError` if there are no samples."""

    def scan(self, progress: Progress) -> Scan:
        paths, places, samples = self.files(), Places(), 0

        def found(count: int = 1) -> None:
            nonlocal samples
            samples += count  # only to show progress: threads may lose a count

        def listed(path: str) -> tuple[File, T]:
            with open_file(self.roots, self.what, path) as file:
                return file, self.list_file(path, file, found)

        pairs = progress.over(listed, paths, _AT_ONCE, lambda: samples, remote=any(map(is_url, paths)))
        files = [file for file, _ in pairs]
        for path in paths:
            places.add_file(path)
        if (root := getattr(self.spec, "root", None)) is not None:  # of files that samples name
            places.add_folder(root)
        meta, sections = self.table(paths, [content for _, content in pairs])
        # A file may be rewritten with the same names and sizes inside.
        state = [file.size for file in files], [file.version for file in files]
        meta["state"] = hashlib.sha256(json.dumps(state).encode()).hexdigest()
        return Scan(meta, sections, places, list(zip(paths, files, strict=True)))

    def is_current(self, container: Container) -> bool:
        return container.meta["files"] == self.files() and super().is_current(container)


def check_count(spec: SourceSpec, n: int) -> None:
    """Raise `SourceError` if a source has too few samples, or too many."""
    if not 1 <= n <= MAX_SAMPLES:
        raise SourceError(f"{spec.location} has {n} samples; there must be 1 to {MAX_SAMPLES}")


def _version(meta: Mapping[str, Any]) -> str:
    """Return a digest of the content, and of the state of files whose content the index does not know."""
    content, state = str(meta["content_digest"]), meta.get("state", "")
    return hashlib.sha256(f"{content} {state}".encode()).hexdigest() if state else content
