"""Fills the rows of a run of positions: reads, decodes and augments samples straight into the rings.

Workers and the client's inline mode run this code. It knows neither sockets nor processes, and the same stream and
positions give the same bytes wherever and however often it runs. It is long because a row can fail in many ways, and
each has its own culprit.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from prepserver.opfile import BadFile
from prepserver.order import NO_SAMPLE
from prepserver.plugins import PluginError
from prepserver.protocol.work import MAX_REASON_CHARS
from prepserver.source import Record, SampleError
from prepserver.source.container import BrokenContainerError
from prepserver.source.errors import printable
from prepserver.transform import DECODING, BadSample, RowMaker, SampleKey, is_shortage
from prepserver.transform.rows import NextTarget, SampleRows
from prepserver.worker.at_once import AtOnce, Mark
from prepserver.worker.caching import Caching, Ready, without
from prepserver.worker.partners import Partners
from prepserver.worker.spent import Spent
from prepserver.worker.streams import Lane, Stream

_log = logging.getLogger(__name__)

REPLACEMENTS = 8
"""How many neighbours are tried in place of a bad sample. Damage comes in runs (a lost shard, a broken copy). If all of
these are bad too, the row is zeros, with `NO_SAMPLE` as label and index."""

_FAR = 4
"""How many samples far from these are tried before their errors count as those of the code, which ends the job. A
damaged series of scans may be a dozen neighbours."""

BLOCK_ROWS = 256
"""Most rows that are read at once. While they are copied at once, the statistics page names only the first of their
samples."""


class LaneError(Exception):
    """One lane's rows cannot be made, though the samples are good; `place` is its place in `fill`'s sequence."""

    def __init__(self, place: int, text: str) -> None:
        super().__init__(text)
        self.place = place


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that does not hold the sample of its position."""

    position: int
    index: int  # index of the sample that was expected
    reason: str  # ``path: why``, one line, at most `MAX_REASON_CHARS`
    # places (in `fill`'s sequence) of the lanes that hold a replacement: all of them if the sample cannot be read or
    # decoded, some if only their pipelines refuse it
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FillResult:
    """Bad rows, and where the time went."""

    bad: list[BadRow]  # rows with a replacement or zeros, in order of position
    read_ns: int  # time for reading encoded bytes
    make_ns: int  # time for decode and augmentation
    shared_ns: int = 0  # CPU time spent for all lanes together; 0 with one lane
    lanes_ns: tuple[int, ...] = ()  # CPU time of rendering for each lane; empty with one lane
    # for each lane the time in each op of its pipeline, by place; part of `make_ns`
    ops_ns: tuple[tuple[int, ...], ...] = ()


def fill(
    stream: Stream, lanes: Sequence[Lane], position: int, count: int, mark: Mark,
    step: NextTarget = lambda _target: None, alone: bool = False,
) -> FillResult:  # fmt: skip
    """Fills the rows of `count` positions from `position` on in every lane; one decode serves all of them.

    The next samples by index replace a bad one: sample ``(index + k) % n`` for k = 1 .. `REPLACEMENTS`, with its own
    augmentations of this pass, label and index. If all of these are bad too, the row is zeros, with label and index
    `NO_SAMPLE`. A lane whose pipeline accepts a sample keeps it, even if other lanes' pipelines refuse it. All
    views of a row are of one sample: if one view cannot be made, all are the replacement's.
    An unexpected error makes the sample bad for the lane that raises it, with the error as the reason. If all
    replacements and some samples far from them raise an unexpected error too, the lane fails.

    Args:
        stream: The samples.
        lanes: Makers and rows of each lane.
        position: The first position.
        count: Number of positions, 1 or more.
        mark: Called with (position, index) before each sample, replacements included; but only with the first of the
            rows that are copied at once, and with `SEVERAL` before rows are made at once.
        step: Called with a lane's place before its row is rendered, and with `DECODING` afterwards.
        alone: Make each row by itself, and not several at once: a worker died on these rows, and the sample at fault is
            to be found.

    Raises:
        LaneError: One lane cannot be filled.
        Exception: An error of neither a sample nor a lane. After either error the rows may hold anything, and must be
            filled again.
    """
    return _Filler(stream, lanes, mark, step, alone).run(position, count)


class _Filler:
    def __init__(self, stream: Stream, lanes: Sequence[Lane], mark: Mark, step: NextTarget, alone: bool) -> None:
        self._stream = stream
        self._lanes = lanes
        self._mark = mark
        self._step = step
        self._unexpected: Counter[int] = Counter()  # unexpected errors at this position, by lane
        self._everywhere = tuple(range(len(lanes)))
        self._mixing = [place for place, lane in enumerate(lanes) if lane.mixers]
        self._bad: list[BadRow] = []
        self._caches = Caching(stream, lanes)
        self._alone = alone
        self._may_wait = False  # whether the current row may be finished after others
        # position, index, and rows that lack all but their images
        self._waiting: list[tuple[int, int, SampleRows]] = []
        self._partners = Partners(stream, lanes, self._caches)
        self._spent = Spent(lanes)
        self._at_once = None if alone else AtOnce(stream, lanes, mark, self._caches, self._spent)

    def run(self, position: int, count: int) -> FillResult:
        indices = self._stream.order.indices(position, count)
        for first in range(0, count, BLOCK_ROWS):
            block = indices[first : first + BLOCK_ROWS]
            if self._at_once is None or not self._at_once.make(position + first, block, self._begin):
                self._make_one_by_one(position + first, block)
        read_ns, make_ns, spent = self._spent.read_ns, self._spent.make_ns, self._spent
        if self._stream.source.computes:
            read_ns, make_ns = 0, read_ns + make_ns
        return FillResult(self._bad, read_ns, make_ns, spent.shared_ns, spent.lanes_ns, spent.ops_ns)

    def _make_one_by_one(self, position: int, indices: list[int]) -> None:
        may_wait = len(self._lanes) == 1 and not self._alone
        try:
            for p, index in enumerate(indices, position):
                if index == NO_SAMPLE:
                    self._blank(p, self._everywhere)  # no job gets this row, but a row is a function of its position
                else:
                    self._make_row(p, index, may_wait)
            self._finish()
        finally:
            self._waiting.clear()  # its rows refer back to this object: a cycle, which would keep rings mapped

    def _make_row(self, position: int, index: int, may_wait: bool) -> None:
        pass_ = position // self._stream.order.n
        self._may_wait = may_wait
        try:
            refused = self._try(position, pass_, index, self._everywhere)
            self._may_wait = False  # a replacement is finished at once, because its faults lead to the next one
            if refused:
                self._replace(position, pass_, index, refused)
        except BrokenContainerError as e:
            e.add_note(f"met at sample {index}")
            raise
        except MemoryError as e:
            e.add_note(f"at {self._stream.source.name(index)}")
            raise

    def _finish(self) -> None:
        """Makes the rest of the waiting rows together: a decoder in between would empty the CPU's caches."""
        begun_ns = time.monotonic_ns()
        again = []
        for position, index, rows in self._waiting:
            self._mark(position, index)  # ORDER: it may quarantine samples of this run
            try:
                if index not in self._stream.quarantined and index not in self._lanes[0].quarantined:
                    rows.finish()
                    continue
            except Exception:  # noqa: BLE001 - making the row again by itself finds what is wrong
                pass
            again.append((position, index))
        self._spent.make_ns += time.monotonic_ns() - begun_ns
        for position, index in again:
            self._make_row(position, index, may_wait=False)
        if again:
            self._bad.sort(key=lambda bad: bad.position)

    def _replace(self, position: int, pass_: int, index: int, refused: dict[int, str]) -> None:
        name = self._stream.source.name(index)
        for why in dict.fromkeys(refused.values()):
            where = tuple(place for place in refused if refused[place] == why)
            self._bad.append(BadRow(position, index, _named(name, why), where))
        n, tries = self._stream.order.samples, 1
        first = refused
        for k in range(1, min(REPLACEMENTS, n - 1) + 1):
            refused, tries = self._try(position, pass_, (index + k) % n, tuple(refused)), tries + 1
            if not refused:
                break
        failing, near = [place for place in refused if self._unexpected[place] == tries], tries
        for k in range(1, min(_FAR, n - tries) + 1):
            if not failing:
                break
            far = (index + near + (k * (n - near)) // (_FAR + 1)) % n  # beyond the neighbours
            failed, tries = self._try(position, pass_, far, tuple(failing)), tries + 1
            failing = [place for place in failed if self._unexpected[place] == tries]
        for place in failing:
            others = f" and {tries - near} others" if tries > near else ""
            raise LaneError(
                place, f"unexpected errors at {near} samples in a row{others}, first at {_named(name, first[place])}"
            )
        self._unexpected.clear()
        self._blank(position, refused)

    def _blank(self, position: int, where: Iterable[int]) -> None:
        for place in where:
            lane = self._lanes[place]
            for field in (*(each for maker in lane.makers for each in maker.fields), *lane.copied):
                lane.rows.put(field.name, position, field.kind.blank)

    def _try(self, position: int, pass_: int, index: int, where: tuple[int, ...]) -> dict[int, str]:
        """Puts sample `index` into the row of `position` in lanes `where`; returns why some of them refuse it."""
        self._mark(position, index)
        if index in self._stream.quarantined:
            return dict.fromkeys(where, "quarantined: workers died or hung on it")
        reason = "quarantined for this pipeline: workers died or hung while they made its row"
        refused = {place: reason for place in where if index in self._lanes[place].quarantined}
        if refused:
            where = tuple(place for place in where if place not in refused)
        if not where:
            return refused
        begun_ns = time.monotonic_ns()
        stamp = self._caches.stamp(index)
        ready = self._caches.hits(index, stamp, where)
        missing = without(where, ready)
        record: Record | None = None
        try:
            record = self._caches.read(index, stamp) if missing else None
        except SampleError as e:
            refused |= dict.fromkeys(missing, e.reason)
        except (OSError, MemoryError):
            raise
        except Exception as e:  # noqa: BLE001 - the sample is to blame, unless its replacements raise it too
            refused |= self._note_unexpected(e, missing)
        finally:
            read_ns = time.monotonic_ns()
            self._spent.read_ns += read_ns - begun_ns
        try:
            if record is not None:
                ready += self._caches.keep(index, stamp, record, missing)
            make = self._make_mixed if self._mixing else self._make
            for each in ready:
                refused |= make(each, SampleKey(self._stream.seed, pass_, index), position)
                self._copy_values(each, position, index, refused)
        finally:
            self._spent.begin(DECODING)
            self._spent.make_ns += time.monotonic_ns() - read_ns
        return refused

    def _copy_values(self, ready: Ready, position: int, index: int, refused: dict[int, str]) -> None:
        for place in ready.where:
            if place not in refused:
                self._lanes[place].copy_values(ready.record, position, index)

    def _begin(self, place: int) -> None:
        self._spent.begin(place)
        self._step(place)

    def _make_mixed(self, ready: Ready, key: SampleKey, position: int) -> dict[int, str]:
        alone = [(place,) for place in ready.where if place in self._mixing]  # other samples enter their rows
        together = without(ready.where, [ready._replace(where=each) for each in alone])
        refused: dict[int, str] = {}
        for where in (*alone, together) if together else alone:
            refused |= self._make(ready._replace(where=where), key, position)
        return refused

    def _make(self, ready: Ready, key: SampleKey, position: int) -> dict[int, str]:
        where = ready.where
        whose = [place for place in where for _ in self._lanes[place].makers]  # of each target: a lane has one a view

        def step(target: int) -> None:
            self._begin(target if target == DECODING else whose[target])

        try:
            if self._lanes[where[0]].mixers:
                self._partners.make(where[0], ready, key, position, self._mark, step)
            else:
                self._make_rows(ready, key, position, step)
        except BadSample as e:
            # An error that names no row would otherwise count as no failure, and the rows as made.
            failures = e.failures or dict.fromkeys(range(len(whose)), e.reason)
            shown = {why: self._with_files(where[0], key.index, why) for why in failures.values()}
            refused: dict[int, str] = {}
            for target, reason in sorted(failures.items()):
                refused.setdefault(whose[target], shown[reason])
            return refused
        except Exception as e:  # noqa: BLE001 - the lane to blame is found below
            if len(where) == 1:
                self._raise_shortage(e, where[0], key.index)
                noted = self._note_unexpected(e, where)
                return {place: self._with_files(place, key.index, why) for place, why in noted.items()}
        else:
            return {}
        # Each row is made again by itself to find the lane to blame; rows are pure.
        found: dict[int, str] = {}
        for place in where:
            self._begin(DECODING)
            found |= self._make(ready._replace(where=(place,)), key, position)
        return found

    def _with_files(self, place: int, index: int, reason: str) -> str:
        # Of a row that is mixed of several samples, a partner may be bad, and not the sample.
        return reason if self._lanes[place].mixers else self._stream.source.with_files(index, reason)

    def _raise_shortage(self, error: Exception, place: int, index: int) -> None:
        if isinstance(error, BrokenContainerError):  # of a partner: the lane is not to blame
            raise error
        if is_shortage(error):
            name = self._stream.source.name(index)
            raise LaneError(place, f"at {_named(name, describe(error))}") from error

    def _make_rows(self, ready: Ready, key: SampleKey, position: int, step: NextTarget) -> None:
        outs: list[tuple[RowMaker, list[Any]]] = []
        for lane in map(self._lanes.__getitem__, ready.where):
            makers = lane.tails if ready.is_tail else lane.makers
            outs += [(maker, [lane.rows.row(field.name, position) for field in maker.fields]) for maker in makers]
        rows = SampleRows(ready.record, key, outs, step)
        if rows.begin():
            return
        if self._may_wait and rows.postpone():
            self._waiting.append((position, key.index, rows))
        else:
            rows.finish()

    def _note_unexpected(self, error: Exception, where: tuple[int, ...]) -> dict[int, str]:
        if not self._unexpected:  # once for each position
            plugin = isinstance(error, PluginError)  # its text says everything but the place in the plug-in
            _log.warning(error if plugin else "unexpected error", exc_info=error.__cause__ if plugin else error)
        self._unexpected.update(where)
        return dict.fromkeys(where, describe(error))


def describe(error: Exception) -> str:
    """Returns class, text and notes of an error; the text alone if it was written to be shown."""
    notes = list(getattr(error, "__notes__", ()))
    if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
        notes.append("worker_memory in the configuration limits each worker's own data")
    name = "" if isinstance(error, BadFile | BrokenContainerError) else f"{type(error).__name__}: "
    return f"{name}{error}" + (f" ({'; '.join(notes)})" if notes else "")


def _named(name: str, why: str) -> str:
    """Returns ``name: why`` in one line of at most `MAX_REASON_CHARS`."""
    name = printable(name)
    why = printable(" ".join(why.split()))[: max(MAX_REASON_CHARS // 2, MAX_REASON_CHARS - len(name) - 2)]
    room = MAX_REASON_CHARS - len(why) - 2
    if len(name) > room:
        name = "..." + name[len(name) - room + 3 :]  # the end of a path says more than its beginning
    return f"{name}: {why}"
