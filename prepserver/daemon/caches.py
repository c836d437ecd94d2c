"""The caches that the daemon makes, in memory within its budget or on disk, and ends some time after their last use."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from prepserver import __version__
from prepserver.cache.folder import FolderError, held_bytes, make_room, open_file, open_folder
from prepserver.cache.lifetime import Use, allowances, ended
from prepserver.cache.store import Book, Shape, write_numbers
from prepserver.memory.budget import machine_free_bytes
from prepserver.memory.errors import SegmentError
from prepserver.memory.segment import create_segment
from prepserver.pipeline.caching import CacheSpec
from prepserver.protocol import work
from prepserver.telemetry.facts import FullCache

log = logging.getLogger(__name__)

_EXTENT_BYTES = 4 << 20  # what a worker takes of a cache at a time
_LEAST_EXTENTS = 256  # of a budget, so that extents which workers have begun waste little of it
_PAGE = 4096
_LEAVING_S = 2.0  # how long memory of a cache may still be mapped: workers unmap it between two tasks
_MOST = 64  # each costs a descriptor, and address space in every worker
_LITTLE = 0.5  # a full cache that holds a smaller fraction of the samples is worth a warning
_ENTRY_BYTES = 192  # of a sample of a few numbers
_TABLE_PART = 16  # a table has a word for each sample, for at most this part of the budget: a spec may claim a trillion


class _Full(Exception):
    """There are too many caches, or a cache would have too many samples."""


@dataclass(slots=True)
class Held:
    """One cache."""

    wanted: CacheSpec  # what it holds
    place: str  # its dataset, for logs and status
    name: str  # name of its file, without suffix
    told: work.AddCache  # the message that gives it to workers
    fd: int  # its memory or file
    book: Book  # the daemon's view of it
    budget_bytes: int = 0  # what the caches of this daemon may take in its folder; 0 for memory
    idle_since_s: float | None = None  # when the last stream of its dataset ended; None while there is one
    is_full: bool = False  # whether it has no room left while a job reads its dataset
    said_full: bool = False  # whether this was logged

    @property
    def nbytes(self) -> int:
        """Its size now, including its table and the extents that workers have begun."""
        return self.book.taken_bytes + Shape(self.told.samples, self.told.extent_bytes).head_bytes


@dataclass(eq=False)
class Caches:
    """All caches."""

    budget_bytes: int  # for all caches in memory
    disk_bytes: int
    folders: Sequence[str]
    clock: Callable[[], float]  # monotonic seconds
    # Sends a message to all workers, with descriptors; set before the first cache.
    tell: Callable[[Any, Sequence[int]], None] = field(init=False)
    _held: dict[int, Held] = field(default_factory=dict, init=False)
    _next: int = field(default=1, init=False)
    _freed_s: float = field(default=-_LEAVING_S, init=False)
    _said_coarse: str = field(default="", init=False)  # listing of which it was logged that no cache can hold it

    @property
    def memory_bytes(self) -> int:
        """Bytes of all caches in memory."""
        return sum(held.nbytes for held in self._held.values() if held.wanted.folder is None)

    @property
    def are_leaving(self) -> bool:
        """Whether workers may be about to give back the memory of a cache."""
        return self.clock() - self._freed_s < _LEAVING_S

    def check_folder(self, wanted: CacheSpec | None, make: bool) -> None:
        """Checks the folder of a cache on disk, and makes a missing one if `make`.

        Raises:
            FolderError: No cache may be there.
        """
        if wanted is not None and wanted.folder is not None:
            os.close(open_folder(wanted.folder, self.folders, make))

    def are_needed(self, listing: work.Indexed, place: str) -> bool:
        """Whether a job that shuffles samples needs a cache in memory, because each would decode a large row group."""
        nbytes = listing.coarse_bytes and max(listing.coarse_bytes, _ENTRY_BYTES * listing.samples)
        if nbytes * _LITTLE > self.budget_bytes:
            log.log(
                logging.DEBUG if listing.key == self._said_coarse else logging.WARNING,
                "most samples of %s decode a whole row group: they take %d MiB, and caches in memory have %d ([cache] "
                "memory). Pass a folder on disk as cache=, or see docs/sources.md, Parquet",
                place, nbytes >> 20, self.budget_bytes >> 20,
            )  # fmt: skip
            self._said_coarse = listing.key
            return False
        return nbytes > 0

    def want(self, wanted: CacheSpec | None, listing: work.Indexed, place: str) -> None:
        """Makes a cache for a dataset unless it has one. Without a cache, rows are the same and only take longer."""
        if wanted is None:
            return
        now, folder = (listing.key, wanted.head), wanted.folder
        same = [held.wanted for held in self._held.values() if (held.told.listing, held.told.head) == now]
        if any(folder in (None, each.folder) for each in same):  # beside one on disk, workers use none in memory
            return
        if len(self._held) >= _MOST:
            self._end(self._idle()[:1])
        try:
            if len(self._held) >= _MOST:
                raise _Full(f"{_MOST} caches are in use, the most that a daemon has")
            held = self._make(wanted, listing, place)
        except (OSError, SegmentError, FolderError, _Full) as e:
            log.warning("no cache of %s: %s", place, e)
            return
        self._held[held.told.cache] = held
        self._allow()
        self.tell(held.told, (held.fd,))
        log.info("cache %d: %s samples of %s, in %s", held.told.cache, wanted.form, place, wanted.folder or "memory")

    def _make(self, wanted: CacheSpec, listing: work.Indexed, place: str) -> Held:
        number, self._next = self._next, self._next + 1
        # A file may outlive an upgrade. Its decoded samples are not used then, so that rows of two versions never mix.
        version = __version__ if wanted.head else ""
        key = hashlib.sha256(f"{listing.key} {wanted.head} {version}".encode())
        name = key.hexdigest()[:32]
        if wanted.folder is None:
            extent_bytes = max(_PAGE, min(_EXTENT_BYTES, self.budget_bytes // _LEAST_EXTENTS) // _PAGE * _PAGE)
            shape = Shape(listing.samples, extent_bytes)
            _check_table(shape, self.budget_bytes)
            budget_bytes = 0
            fd = create_segment(f"prepserver-cache-{number}", shape.head_bytes + self.budget_bytes)
        else:
            shape = Shape(listing.samples, _EXTENT_BYTES)
            folder = open_folder(wanted.folder, self.folders)
            try:
                disk = os.fstatvfs(folder)
                budget_bytes = self.disk_bytes or held_bytes(folder) + disk.f_bavail * disk.f_frsize // 2
                _check_table(shape, budget_bytes)
                make_room(folder, name, budget_bytes)
                budget_bytes -= held_bytes(folder, [name, *(held.name for held in self._held.values())])
                fd = open_file(folder, name, shape, key.digest())
            finally:
                os.close(folder)
        try:
            if wanted.folder is None:
                write_numbers(fd, shape, key.digest())
            told = work.AddCache(number, listing.key, wanted.head, *shape, wanted.folder is not None)
            return Held(wanted, place, name, told, fd, Book(fd, shape), budget_bytes)
        except (OSError, SegmentError):
            os.close(fd)
            raise

    def setup(self) -> Iterable[tuple[Any, Sequence[int]]]:
        """The messages for a new worker, with their descriptors."""
        return [(held.told, (held.fd,)) for held in self._held.values()]

    def tick(self, listings: Collection[str]) -> None:
        """Ends caches, and lets the others grow; `listings` are the keys of the listings that jobs read now."""
        if not self._held:
            return
        now_s = self.clock()
        for held in self._held.values():
            if held.told.listing in listings:
                held.idle_since_s = None
            elif held.idle_since_s is None:
                held.idle_since_s = now_s
        uses = [self._use(held, now_s) for held in self._held.values()]
        memory = [use for use in uses if self._held[use.id].wanted.folder is None]
        disk = [use for use in uses if use not in memory]
        self._end([*ended(memory, self.budget_bytes, machine_free_bytes()[0]), *ended(disk, 1 << 60, 1 << 60)])
        self._allow()

    def free_idle(self) -> None:
        """Ends caches in memory that no job uses, because something else needs the memory."""
        self._end([number for number in self._idle() if self._held[number].wanted.folder is None])

    def _idle(self) -> list[int]:
        """Caches that no job uses, the longest idle first."""
        found = [(held.idle_since_s, n) for n, held in self._held.items() if held.idle_since_s is not None]
        return [number for _, number in sorted(found)]

    def _use(self, held: Held, now_s: float) -> Use:
        return Use(held.told.cache, held.nbytes, None if held.idle_since_s is None else now_s - held.idle_since_s)

    def _allow(self) -> None:
        now_s = self.clock()
        memory = [self._use(held, now_s) for held in self._held.values() if held.wanted.folder is None]
        most = allowances(memory, self.budget_bytes, machine_free_bytes()[0])
        for number, held in self._held.items():
            if held.wanted.folder is not None:
                same = [other for other in self._held.values() if other.wanted.folder == held.wanted.folder]
                most |= allowances([self._use(other, now_s) for other in same], held.budget_bytes, 1 << 60)
            head_bytes = held.nbytes - held.book.taken_bytes
            held.book.allow(most[number] - head_bytes)
            self._say_full(held, most[number])

    def _say_full(self, held: Held, most_bytes: int) -> None:
        part = held.book.counts.rows / held.told.samples
        held.is_full = most_bytes - held.nbytes < held.told.extent_bytes and held.idle_since_s is None
        if held.is_full and not held.said_full and part < _LITTLE:
            held.said_full = True
            log.warning(
                "cache %d of %s is full with %.0f %% of the samples. Give it more ([cache] memory, disk), or keep less "
                "of each sample: encoded ones, or a smaller Resize at the start",
                held.told.cache, held.place, 100 * part,
            )  # fmt: skip

    def _end(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            held = self._held.pop(number)
            os.close(held.fd)
            self.tell(work.DropCache(number), ())
            self._freed_s = self.clock()
            log.info("cache %d of %s ended", number, held.place)

    def full_of(self, listing: str) -> FullCache | None:
        """The full cache that holds the smallest part of a dataset; `listing` is the key of its listing."""
        found = []
        for held in self._held.values():
            rows = held.book.counts.rows
            if held.is_full and held.told.listing == listing and rows:
                part = min(1.0, rows / held.told.samples)
                where: Literal["memory", "disk"] = "memory" if held.wanted.folder is None else "disk"
                beside = [each for each in self._held.values() if each.wanted.folder == held.wanted.folder]
                found.append(FullCache(held.wanted.form, part, sum(map(_whole_bytes, beside)), where))
        return min(found, key=lambda each: each.part, default=None)

    def close(self) -> None:
        """Closes all caches; files on disk stay."""
        for held in self._held.values():
            os.close(held.fd)
        self._held.clear()

    def snapshot(self) -> list[dict[str, Any]]:
        """For `prepserver status`."""
        found = []
        for held in self._held.values():
            counts = held.book.counts
            asked = counts.hits + counts.misses
            found.append({
                "id": held.told.cache,
                "source": held.place,
                "form": held.wanted.form,
                "ops": list(held.wanted.ops),
                "place": held.wanted.folder or "memory",
                "samples": held.told.samples,
                "rows": min(counts.rows, held.told.samples),
                "bytes": held.nbytes,
                "hits": counts.hits,
                "misses": counts.misses,
                "hit_rate": round(counts.hits / asked, 4) if asked else None,
                "damaged": counts.bad,
                "idle_s": None if held.idle_since_s is None else round(self.clock() - held.idle_since_s, 1),
            })  # fmt: skip
        return found


def _whole_bytes(held: Held) -> int:
    """The size that a cache needs: one that is full for all samples of its dataset, another one its own."""
    rows = held.book.counts.rows if held.is_full else 0
    return round(held.nbytes / min(1.0, rows / held.told.samples)) if rows else held.nbytes


def _check_table(shape: Shape, budget_bytes: int) -> None:
    if 8 * shape.samples > budget_bytes // _TABLE_PART:
        table, budget = (f"{n >> 20} MiB" if n >> 23 else f"{n >> 10} KiB" for n in (8 * shape.samples, budget_bytes))
        raise _Full(
            f"for {shape.samples} samples its table alone takes {table}, more than a {_TABLE_PART}th of the budget of "
            f"{budget} ([cache] memory, disk)"
        )
