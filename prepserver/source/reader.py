"""What reads a source: it lists the dataset, tells whether a listing is current, and reads samples by it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from prepserver.pipeline.source import SourceSpec
from prepserver.source.cache import IndexCache
from prepserver.source.container import BrokenContainerError, Container
from prepserver.source.errors import SourceError
from prepserver.source.places import still_lead
from prepserver.source.progress import Progress
from prepserver.source.roots import Roots
from prepserver.source.samples import Source

# Times of files are coarse: a tick of 4 ms locally, 1 or 2 s on some network and older file systems. A folder
# that changed this shortly before its scan may change again without a new time, so such an index is used
# once and not trusted later (git calls such entries "racily clean").
_COARSEST_TIME_NS = 2 * 10**9


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """What is known of a dataset once it is indexed.

    Attributes:
        path: The index file; it never changes.
        n: Number of samples, at least 1.
        num_classes: Labels are below this number.
        digest: Hex SHA-256 of spec and content: the identity of the source. It differs between two folders with equal
            names inside, such as a resized copy.
        content_digest: Hex SHA-256 of labels, relative paths and class names alone: it stays when a dataset moves.
        places: Folders that hold all files that `Reader.open` and `Source.read` open.
    """

    path: Path
    n: int
    num_classes: int
    digest: str
    content_digest: str
    places: tuple[str, ...]


@dataclass(frozen=True)
class Scan:
    """The content of a new index.

    Attributes:
        meta: Plain values, among them ``content_digest``; see `IndexInfo`. ``state`` is a digest of sizes and times of
            the files, for an index that does not hold all of their content.
        sections: Bytes by name.
        mtimes_ns: The times of all files and folders that it was made from.
        places: See `Places.found`.
        state: Differs between states of objects on the network that have equal names; empty for local files.
    """

    meta: dict[str, Any]
    sections: dict[str, memoryview]
    mtimes_ns: list[int]
    places: dict[str, str]
    state: str = ""


class Reader(ABC):
    """How one kind of source is read. An indexer lists it and workers read it, never the daemon.

    Args:
        spec: The dataset.

    Attributes:
        kind: Class of the spec.
    """

    kind: ClassVar[type[SourceSpec]]

    @abstractmethod
    def __init__(self, spec: Any) -> None: ...

    @abstractmethod
    def index(self, cache_dir: Path, report: Callable[[int], None], roots: Roots | None) -> IndexInfo:
        """See `prepserver.source.build_index`."""

    @abstractmethod
    def open(self, index_path: Path, roots: Roots | None) -> Source:
        """See `prepserver.source.open_source`."""


class ScanningReader(Reader):
    """A reader of a dataset that must be scanned: a cache keeps its indexes, which serve until something changes."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    @property
    def key(self) -> str:
        """The name of the spec in the cache."""
        return str(self.spec.digest[:32])

    @abstractmethod
    def scan(self, progress: Progress, roots: Roots | None) -> Scan:
        """List the dataset.

        Raises:
            SourceError: It cannot be used; the text says what to do.
            OutsideRootsError: It does not lie in the roots.
        """

    @abstractmethod
    def is_current(self, container: Container) -> bool:
        """Say whether all that an index was built from is unchanged; about 2 us for each folder.

        Raises:
            OSError, BrokenContainerError: It has changed.
        """

    def check_roots(self, sections: Callable[[str], memoryview], roots: Roots) -> None:
        """Check that all that an index names lies in the roots.

        Args:
            sections: Returns a section of the index by name.
            roots: Where it must lie.

        Raises:
            OutsideRootsError: Something lies outside.
        """

    @abstractmethod
    def read_by(self, container: Container, roots: Roots | None) -> Source:
        """Open the source by an index.

        Raises:
            OSError, BrokenContainerError: The index is damaged.
        """

    def counts(self, meta: Mapping[str, Any]) -> tuple[int, int]:
        """Return the numbers of samples and of classes, from an index."""
        return meta["n"], meta["num_classes"]

    def index(self, cache_dir: Path, report: Callable[[int], None], roots: Roots | None) -> IndexInfo:
        """As `Reader.index`."""
        cache = IndexCache(cache_dir)
        for path, container in cache.candidates(self.key):
            if self._is_good(container):
                if roots is not None:
                    self.check_roots(partial(_section, container), roots)
                return self._info(path, container.meta)
        started_ns = cache.clock_ns()
        scan = self.scan(Progress(report), roots)
        ended_ns = cache.clock_ns()
        # A time from the future raises no doubt: the next change will get the present time.
        settled = not any(
            started_ns - _COARSEST_TIME_NS <= mtime_ns <= ended_ns + _COARSEST_TIME_NS for mtime_ns in scan.mtimes_ns
        )
        meta = {"key": self.key, "settled": settled, "places": scan.places, "state": scan.state, **scan.meta}
        if scan.state:
            for path, container in cache.candidates(self.key):
                if _version(container.meta) == _version(meta):
                    return self._info(path, container.meta)
        return self._info(cache.publish(self.key, _version(meta), meta, scan.sections), meta)

    def open(self, index_path: Path, roots: Roots | None) -> Source:
        """As `Reader.open`."""
        try:
            container = Container(index_path)
            if container.meta.get("key") != self.key:
                raise SourceError(f"the index {index_path} belongs to another dataset")
            return self.read_by(container, roots)
        except (OSError, BrokenContainerError) as error:
            raise SourceError(
                f"cannot open the index {index_path}: {error}; attach again to have it rebuilt"
            ) from error

    def _is_good(self, container: Container) -> bool:
        try:
            places = container.meta.get("places")  # an older release kept them elsewhere
            settled = bool(container.meta["settled"]) and places is not None and still_lead(places)
            return settled and self.is_current(container)
        except (OSError, BrokenContainerError):
            return False  # the scan that follows explains what is wrong

    def _info(self, path: Path, meta: Mapping[str, Any]) -> IndexInfo:
        digest = hashlib.sha256(f"{self.spec.digest} {_version(meta)}".encode()).hexdigest()
        return IndexInfo(path, *self.counts(meta), digest, meta["content_digest"], (*meta["places"], str(path.parent)))


def _version(meta: Mapping[str, Any]) -> str:
    """Return a digest of the content, and of the state of files whose content the index does not know."""
    content, state = str(meta["content_digest"]), meta.get("state", "")
    return hashlib.sha256(f"{content} {state}".encode()).hexdigest() if state else content


def _section(container: Container, name: str) -> memoryview:
    return memoryview(container.section(name))
