"""Reads sources that are composed of others, by an `IndexMap` over their listings.

The listing of a composed source names the listings of its sources, which lie in the cache for all jobs that use them,
and holds the indices that a map cannot compute. The readers of its sources decide what is current, what lies in the
roots, and what is wrong with a sample.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prepserver.pipeline.composed import Composed, Pattern
from prepserver.pipeline.record import changed_label, label_of
from prepserver.plugins import PluginError
from prepserver.source.cache import ListingCache
from prepserver.source.container import Container
from prepserver.source.errors import SampleError, SourceError, unusable
from prepserver.source.maps import IndexMap, Interleaved, Picked, Woven
from prepserver.source.places import Places
from prepserver.source.progress import Progress
from prepserver.source.reader import Listing, Reader, check_count
from prepserver.source.roots import Roots
from prepserver.source.samples import Indices, Record, Source
from prepserver.source.storage.remote import RemoteError

_VERSION = 1  # raise it when a map or a choice of samples changes: another listing is another stream

_PICKED = "picked"

_AT_ONCE = 256  # samples whose reads begin together while a listing reads them

Tables = list[list[int] | None]


class ComposedReader(Reader):
    """A reader over other readers; the spec says how their samples take turns."""

    spec: Composed

    def __init__(self, spec: Composed, roots: Roots) -> None:
        from prepserver.source.readers import READERS  # the registry imports the subclasses

        super().__init__(spec, roots)
        self._readers = {each.digest: READERS[type(each)](each, roots) for each in spec.sources}  # each listed once

    def map(self, listing: Container) -> IndexMap:
        """Return the map that a listing describes."""
        lengths = listing.meta["lengths"]
        turns = self.spec.turns(lengths)
        return Woven(turns, lengths) if isinstance(turns, Pattern) else Interleaved(turns, lengths)

    def over(self, listing: Container, opened: Sequence[Source]) -> Source:
        """Return the source over the `opened` ones that a listing describes."""
        return ComposedSource(self.spec, listing, opened, self.map(listing))

    def index(self, cache_dir: Path, report: Callable[[int], None]) -> Listing:
        infos: dict[str, Listing] = {}

        def found(here: int) -> None:
            report(sum(each.samples for each in infos.values()) + here)

        for digest, reader in self._readers.items():
            infos[digest] = reader.index(cache_dir, found)
        listed = [infos[each.digest] for each in self.spec.sources]
        self._content = self._read()
        paths = [str(each.path) for each in listed]
        changed = changed_label(self.spec.columns)
        digest = _digest(_VERSION, self.spec.digest, [each.digest for each in listed], _sha256(self._content), *changed)
        cache, wanted = ListingCache(cache_dir), {"digest": digest, "paths": paths}
        present = (
            each
            for each in cache.candidates(self.key)
            if wanted.items() <= each.meta.items() and "is_numbered" in each.meta  # not in 0.2
        )
        container = next(present, None)
        if container is None:
            meta, sections = self._made(listed, self._opened(paths), Progress(report))
            container = cache.publish(self.key, digest, {**meta, **wanted}, sections)
        n = self.map(container).count
        check_count(self.spec, n)
        places = Places()
        for folder in dict.fromkeys([str(cache_dir), *(place for each in listed for place in each.places)]):
            places.add_folder(folder)
        meta = container.meta
        where, classes = tuple(places.found()), tuple(meta["classes"])
        return Listing(
            container.path, n, meta["num_classes"], digest, meta["content_digest"], where, classes,
            coarse_bytes=n * sum(each.coarse_bytes for each in listed) // sum(each.samples for each in listed),
        )  # fmt: skip

    def read_by(self, container: Container) -> Source:
        return self.over(container, self._opened(container.meta["paths"]))

    def _read(self) -> bytes:
        """Return the content of the file that the spec names besides its sources, if any; kept as `_content`."""
        return b""

    def _made(
        self, listed: Sequence[Listing], opened: Sequence[Source], progress: Progress
    ) -> tuple[dict[str, Any], dict[str, memoryview]]:
        sections = self._sections(opened, progress)
        numbered = [each.is_numbered for each in opened]
        places = [each.location for each in self.spec.sources]
        names, tables = unified(places, [each.classes() for each in opened], numbered)
        content = [each.content_digest for each in listed]
        numbers = [each.num_classes for each, table in zip(listed, tables, strict=True) if table is None]
        return {
            "key": self.key,
            "lengths": [each.samples for each in listed],
            "classes": names,
            "tables": tables,
            "is_numbered": any(numbered),
            "num_classes": max(len(names), *numbers, 0),
            "content_digest": _digest(
                _VERSION,
                self.spec.without_paths(),
                content,
                _sha256(*sections.values()),
                *changed_label(self.spec.columns),
            ),
        }, sections

    def _sections(self, opened: Sequence[Source], progress: Progress) -> dict[str, memoryview]:
        return {}

    def _opened(self, paths: Sequence[str]) -> list[Source]:
        where = {each.digest: path for each, path in zip(self.spec.sources, paths, strict=True)}
        opened = {digest: self._readers[digest].open(Path(path)) for digest, path in where.items()}
        return [opened[each.digest] for each in self.spec.sources]


class PickingReader(ComposedReader):
    """A reader of chosen samples of one source; the listing holds their indices."""

    @abstractmethod
    def pick(self, source: Source, progress: Progress) -> npt.NDArray[Any]:
        """Return the chosen indices, all in range(len(source)); raises `SourceError` if nothing can be chosen so."""

    def map(self, listing: Container) -> IndexMap:
        form, size, dtype = ("I", 4, "uint32") if listing.meta["lengths"][0] <= 1 << 32 else ("Q", 8, "uint64")
        return Picked(listing.rows(_PICKED, form, size), dtype)

    def _sections(self, opened: Sequence[Source], progress: Progress) -> dict[str, memoryview]:
        dtype = np.uint32 if len(opened[0]) <= 1 << 32 else np.uint64
        picked = np.ascontiguousarray(self.pick(opened[0], progress), dtype)
        return {_PICKED: picked.view(np.uint8).data}


def records(source: Source, start: int, stop: int, column: str = "") -> Iterator[tuple[int, Record | None]]:
    """Yield index and record of the samples in [start, stop), for choices by their content, or by one `column` of it.

    The record of a sample that cannot be read is None. It stays in the epoch, where reading it again shows the reason.

    Raises:
        SourceError: An object on the network cannot be read, which may pass.
    """
    for index in range(start, stop):
        if source.reads_ahead and (index - start) % _AT_ONCE == 0:
            with contextlib.suppress(Exception):  # reading the sample raises it again
                source.prefetch(range(index, min(index + _AT_ONCE, stop)))
        try:
            yield index, source.read_columns(index, [column]) if column else source.read(index)
        except RemoteError as error:
            raise unusable("the sample", source.name(index), error) from error
        except (SampleError, PluginError):
            yield index, None


def drawn(n: int, seed: int) -> npt.NDArray[Any]:
    """Return a permutation of range(n), the same with any release of numpy; 9 bytes and 20 ns for each sample."""
    # Unlike a Generator, RandomState is frozen (NEP 19).
    return np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed))).permutation(n)


class ComposedSource(Source):
    """A `Source` over the opened `sources` of a spec; `places` says where samples come from."""

    def __init__(self, spec: Composed, listing: Container, sources: Sequence[Source], places: IndexMap) -> None:
        self._sources, self._map, self._count = sources, places, places.count
        self._classes: list[str] = listing.meta["classes"]
        self._tables: Tables = listing.meta["tables"]
        self._is_numbered: bool = listing.meta.get("is_numbered", False)
        self._label = label_of(spec.columns)
        self.computes = any(each.computes for each in sources)
        # Files of equal names may lie in several places.
        self._is_several = len({part.digest for part in spec.parts() if not isinstance(part, Composed)}) > 1
        self._suffixes = [f" in {each.location}" for each in spec.sources]

    def __len__(self) -> int:
        return self._count

    @property
    def is_numbered(self) -> bool:
        return self._is_numbered

    def read(self, index: int) -> Record:
        """As `Source.read`: one sample of one source is read."""
        source, place = self._at(index)
        return self._relabelled(source, self._sources[source].read(place))

    def read_columns(self, index: int, columns: Sequence[str]) -> Record:
        source, place = self._at(index)
        return self._relabelled(source, self._sources[source].read_columns(place, columns))

    def read_block(self, indices: Indices, into: Mapping[str, npt.NDArray[Any]]) -> bool:
        """As `Source.read_block`: a block of each source that has some of the samples."""
        asked = np.asarray(indices, np.int64)
        if not 0 <= asked.min() <= asked.max() < self._count:
            raise IndexError(f"indices {asked.min()} to {asked.max()} of a source of {self._count} samples")
        sources, places = self._map.places(asked)
        for source in np.unique(sources).tolist():
            (here,) = np.nonzero(sources == source)
            first, count = int(here[0]), len(here)
            is_run = int(here[-1]) - first == count - 1
            rows = {
                name: each[first : first + count] if is_run else np.empty((count, *each.shape[1:]), each.dtype)
                for name, each in into.items()
            }
            if not self._sources[source].read_block(places[here], rows):
                return False
            if (table := self._tables[source]) is not None and self._label in rows:
                labels = rows[self._label]
                if not 0 <= labels.min() <= labels.max() < len(table):
                    return False  # `read` finds the bad sample
                labels[:] = np.asarray(table)[labels]
            if not is_run:
                for name, each in into.items():
                    each[here] = rows[name]
        return True

    @property
    def reads_ahead(self) -> bool:
        """As `Source.reads_ahead`: whether one of its sources does."""
        return any(each.reads_ahead for each in self._sources)

    def prefetch(self, indices: Sequence[int]) -> None:
        wanted: defaultdict[int, list[int]] = defaultdict(list)
        for source, place in map(self._at, indices):
            wanted[source].append(place)
        for source, places in wanted.items():
            if self._sources[source].reads_ahead:
                self._sources[source].prefetch(places)

    def group(self, index: int) -> Hashable:
        source, place = self._at(index)
        inside = self._sources[source].group(place)
        return None if inside is None else (source, inside)

    def stamp(self, index: int) -> int:
        source, place = self._at(index)
        return self._sources[source].stamp(place)

    def with_files(self, index: int, reason: str) -> str:
        source, place = self._at(index)
        return self._sources[source].with_files(place, reason)

    def label(self, index: int) -> int:
        source, place = self._at(index)
        return self._relabel(source, self._sources[source].label(place))

    def name(self, index: int) -> str:
        """As `Source.name`: the name in its source, and the place of that source if there are several."""
        name, where = self._named(index)
        return name + where if self._is_several else name

    def _named(self, index: int) -> tuple[str, str]:
        source, place = self._at(index)
        inner = self._sources[source]
        return inner._named(place) if isinstance(inner, ComposedSource) else (inner.name(place), self._suffixes[source])

    def _at(self, index: int) -> tuple[int, int]:
        if not 0 <= index < self._count:
            raise IndexError(f"index {index} of a source of {self._count} samples")
        return self._map.at(index)

    def _relabelled(self, source: int, record: Record) -> Record:
        if self._tables[source] is not None and self._label in record:
            record[self._label] = self._relabel(source, record[self._label])
        return record

    def _relabel(self, source: int, label: int) -> int:
        table = self._tables[source]
        if table is None:
            return label
        if not 0 <= label < len(table):
            raise SampleError(f"its label is {label}, and there are {len(table)} classes, numbered from 0")
        return table[label]


def unified(places: Sequence[str], classes: Sequence[list[str]], numbered: Sequence[bool]) -> tuple[list[str], Tables]:
    """Number classes by name over several sources, which messages call by their `places`.

    `numbered` says of which sources some labels have no name. Returns the names by common label, and for each source
    the common labels by its own; None where they are equal.

    Raises:
        SourceError: The names differ, so labels must be numbered by name, but a source's labels have no names, or a
            name is not unique.
    """
    names = list(dict.fromkeys(itertools.chain.from_iterable(classes)))
    longest = max(classes, key=len)
    if all(each == longest[: len(each)] for each in classes):
        return longest, [None] * len(classes)
    for place, each, is_numbered in zip(places, classes, numbered, strict=True):
        if len(set(each)) != len(each) or is_numbered:
            why = "has numbers instead of names" if is_numbered else "has two classes of one name"
            raise SourceError(
                f"the sources name their classes differently, so labels are numbered by name; but {place} {why}"
            )
    number = {name: label for label, name in enumerate(names)}
    tables = [[number[name] for name in each] for each in classes]
    return names, [None if table == list(range(len(table))) else table for table in tables]


def _digest(*what: object) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _sha256(*pieces: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
