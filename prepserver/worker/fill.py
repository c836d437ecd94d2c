"""Fills the rows of a run of positions: reads, decodes and augments samples straight into the rings.

Workers and the client's inline mode run this code. It knows neither sockets nor processes, and the same stream and
positions give the same bytes wherever and however often it runs. It is long because a row fails in many ways, each with
a place of its own to blame.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prepserver.opfile import BadFile
from prepserver.order import NO_SAMPLE
from prepserver.pipeline.record import INDEX
from prepserver.plugins import PluginError
from prepserver.protocol.work import MAX_REASON_CHARS
from prepserver.source import Record, SampleError, Source
from prepserver.source.container import BrokenContainerError
from prepserver.source.errors import printable
from prepserver.telemetry.page import SEVERAL
from prepserver.transform import DECODING, BadSample, SampleKey, is_shortage
from prepserver.transform.rows import NextTarget, Rows
from prepserver.worker.caching import Caching, Ready, without
from prepserver.worker.partners import Partners
from prepserver.worker.streams import Stream, Target

_log = logging.getLogger(__name__)

REPLACEMENTS = 8
"""How many neighbours are tried for a bad sample. Damage comes in runs (a lost shard, a broken copy); beyond this
number the row is zeros, with `NO_SAMPLE` as label and index, and the reason says that the dataset is bad."""

BLOCK_ROWS = 256
"""Most rows that are read at once; their first sample is named to the daemon as the one in hand."""

_TRANSIENT = (
    *(errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT),
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
)
_RETRY_AFTER_S = (0.01, 0.1)


Mark = Callable[[int, int], None]


class LaneError(Exception):
    """One target's rows cannot be made, though the samples are good; `target` is its place in `fill`'s sequence."""

    def __init__(self, target: int, text: str) -> None:
        super().__init__(text)
        self.target = target


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that does not hold the sample of its position."""

    position: int
    index: int  # index of the sample that was expected
    reason: str  # ``path: why``, one line, at most `MAX_REASON_CHARS`
    # the targets (places in `fill`'s sequence) that hold a replacement: all if the sample cannot be read or decoded,
    # some if only their pipelines refuse it
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FillResult:
    """What `fill` did."""

    bad: list[BadRow]  # rows with a replacement or zeros, in order of position
    read_ns: int  # time for reading encoded bytes
    make_ns: int  # time for decode and augmentation
    shared_ns: int = 0  # CPU time spent for all targets together; 0 with one target
    targets_ns: tuple[int, ...] = ()  # CPU time of rendering for each target; empty with one target
    # for each target the time in each op of its pipeline, by place; part of `make_ns`
    ops_ns: tuple[tuple[int, ...], ...] = ()


def fill(
    stream: Stream, targets: Sequence[Target], position: int, count: int, mark: Mark,
    step: NextTarget = lambda _target: None, alone: bool = False,
) -> FillResult:  # fmt: skip
    """Fills the rows of `count` positions from `position` on in every target; one decode serves all of them.

    The next samples by index replace a bad one: sample ``(index + k) % n`` for k = 1 .. `REPLACEMENTS`, with its own
    augmentations of this pass, label and index. If all of these are bad too, the row is zeros, with label and index
    `NO_SAMPLE`. A target whose pipeline takes a sample keeps it, whatever other targets' pipelines refuse. All views of
    a row are of one sample: if one view cannot be made, all are the replacement's.
    An unexpected error makes the sample bad for the target that raises it, with the error as the reason. If all
    replacements raise one as well, the target fails.

    Args:
        stream: The samples.
        targets: Makers and rows of each lane.
        position: The first position.
        count: Number of positions, 1 or more.
        mark: Called with (position, index) before each sample, replacements included.
        step: Called with a target's place before its row is rendered, and with `DECODING` afterwards.
        alone: Make each row by itself, although several may be made at once: a worker died in these, and the sample in
            hand is to be found.

    Raises:
        LaneError: One target cannot be filled.
        Exception: An error of neither a sample nor a target. After both kinds of error the rows may hold anything and
            must be filled again.
    """
    return _Filler(stream, targets, mark, step, alone).run(position, count)


class _Filler:
    def __init__(self, stream: Stream, targets: Sequence[Target], mark: Mark, step: NextTarget, alone: bool) -> None:
        self._stream = stream
        self._targets = targets
        self._mark = mark
        self._step = step
        self._unforeseen: Counter[int] = Counter()  # unexpected errors at this position, by target
        self._everywhere = tuple(range(len(targets)))
        only_take = all(target.only_takes for target in targets)
        self._only_take = only_take and not alone
        self._take_blocks = not (only_take or alone) and all(target.takes_blocks for target in targets)
        self._bad: list[BadRow] = []
        self._caches = Caching(stream, targets)
        self._alone = alone
        self._may_wait = False  # whether the current row may be finished after others
        self._waiting: list[tuple[int, int, Rows]] = []  # position, index, and rows of which only images are made
        self._partners = Partners(stream, targets, self._caches, _read)
        self._read_ns = 0
        self._make_ns = 0
        self._cpu_ns = [0] * (len(targets) + 1)  # by target; the last place belongs to `DECODING`
        self._at, self._at_ns = DECODING, time.thread_time_ns()  # the current step and its start
        for target in targets:
            for maker in target.makers:
                maker.ops_ns = [0] * len(maker.ops_ns)
            for maker, mixer in zip(target.makers, target.mixers, strict=False):
                mixer.parts.ops_ns = mixer.headed.ops_ns = mixer.tail.ops_ns = maker.ops_ns

    def run(self, position: int, count: int) -> FillResult:
        indices = self._stream.order.indices(position, count)
        for first in range(0, count, BLOCK_ROWS):
            block = indices[first : first + BLOCK_ROWS]
            is_done = (self._only_take and self._copy(position + first, block)) or (
                self._take_blocks and self._make_block(position + first, block)
            )
            if not is_done:
                self._make_one_by_one(position + first, block)
        if self._stream.source.computes:
            self._read_ns, self._make_ns = 0, self._read_ns + self._make_ns
        ops_ns = tuple(
            tuple(map(sum, zip(*(maker.ops_ns for maker in target.makers), strict=True))) for target in self._targets
        )
        if len(self._targets) == 1:
            return FillResult(self._bad, self._read_ns, self._make_ns, ops_ns=ops_ns)
        *targets_ns, shared_ns = self._cpu_ns
        return FillResult(self._bad, self._read_ns, self._make_ns, shared_ns, tuple(targets_ns), ops_ns)

    def _is_suspect(self, indices: list[int]) -> bool:
        """Whether something speaks against making the rows of a run at once."""
        quarantined = [self._stream.quarantined, *(target.quarantined for target in self._targets)]
        return NO_SAMPLE in indices or not all(each.isdisjoint(indices) for each in quarantined)

    def _copy(self, position: int, indices: list[int]) -> bool:
        """Reads the rows of a run at once, where nothing speaks against it; if False, the rows may hold anything."""
        if NO_SAMPLE in indices:
            return False
        self._mark(position, indices[0])  # ORDER: it may quarantine samples of this run
        if self._is_suspect(indices):
            return False
        begun_ns = time.monotonic_ns()
        try:
            self._only_take = all(self._copy_into(target, position, indices) for target in self._targets)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - one by one it is found which sample is bad, and why
            return False
        finally:
            self._read_ns += time.monotonic_ns() - begun_ns
        return self._only_take

    def _copy_into(self, target: Target, position: int, indices: list[int]) -> bool:
        rows = {field.column: target.rows.run(field.name, position, len(indices)) for field in target.taken}
        there = len(rows[INDEX])
        rows.pop(INDEX)[:] = indices[:there]
        if not self._stream.source.read_block(indices[:there], rows):
            return False
        return there == len(indices) or self._copy_into(target, position + there, indices[there:])

    def _make_block(self, position: int, indices: list[int]) -> bool:
        """Reads the samples of a run and makes all rows at once; if False, the rows may hold anything."""
        if self._is_suspect(indices):
            return False
        begun_ns = read_ns = time.monotonic_ns()
        try:
            records = []
            for place, index in enumerate(indices, position):
                self._mark(place, index)  # ORDER: it may quarantine samples of this run
                records.append(self._caches.read(index, self._caches.stamp(index), _read))
            read_ns = time.monotonic_ns()
            # Whatever ends the worker from here on may be any of them: the rows will be made again, one by one.
            self._mark(position, SEVERAL)
            if self._is_suspect(indices):
                return False
            n = self._stream.order.n
            keys = [SampleKey(self._stream.seed, p // n, index) for p, index in enumerate(indices, position)]
            for t, target in enumerate(self._targets):
                self._begin(t)
                for maker in target.makers:
                    outs = [
                        [target.rows.row(field.name, position + k) for field in maker.fields] for k in range(len(keys))
                    ]
                    maker.make_block(records, keys, outs)
                for p, (index, record) in enumerate(zip(indices, records, strict=True), position):
                    self._take(Ready(record, (t,)), p, index, {})
        except Exception:  # noqa: BLE001 - one by one it is found which sample is bad, and why
            return False
        finally:
            self._begin(DECODING)
            self._read_ns += read_ns - begun_ns
            self._make_ns += time.monotonic_ns() - read_ns
        return True

    def _make_one_by_one(self, position: int, indices: list[int]) -> None:
        may_wait = len(self._targets) == 1 and not self._alone
        try:
            for p, index in enumerate(indices, position):
                if index == NO_SAMPLE:
                    self._blank(p, self._everywhere)  # no job gets it, but a row is a function of its position
                else:
                    self._make_row(p, index, may_wait)
            self._finish()
        finally:
            self._waiting.clear()  # it leads back here, and would keep rings mapped

    def _make_row(self, position: int, index: int, may_wait: bool) -> None:
        pass_ = position // self._stream.order.n
        self._may_wait = may_wait
        try:
            refused = self._try(position, pass_, index, self._everywhere)
            self._may_wait = False  # a replacement is made at once: what else is wrong with it leads to the next one
            if refused:
                self._replace(position, pass_, index, refused)
        except BrokenContainerError as e:
            e.add_note(f"met at sample {index}")
            raise

    def _finish(self) -> None:
        """Makes all but the images of the rows that wait for it: a decoder between them would empty the caches."""
        begun_ns = time.monotonic_ns()
        again = []
        for position, index, rows in self._waiting:
            self._mark(position, index)  # ORDER: it may quarantine samples of this run
            try:
                if index not in self._stream.quarantined and index not in self._targets[0].quarantined:
                    rows.finish()
                    continue
            except Exception:  # noqa: BLE001 - made again by itself, it is found what is wrong
                pass
            again.append((position, index))
        self._make_ns += time.monotonic_ns() - begun_ns
        for position, index in again:
            self._make_row(position, index, may_wait=False)
        if again:
            self._bad.sort(key=lambda bad: bad.position)

    def _replace(self, position: int, pass_: int, index: int, refused: dict[int, str]) -> None:
        name = self._stream.source.name(index)
        for why in dict.fromkeys(refused.values()):
            where = tuple(t for t in refused if refused[t] == why)
            self._bad.append(BadRow(position, index, _reason(name, why), where))
        n, tries = self._stream.order.samples, 1
        first = refused
        for k in range(1, min(REPLACEMENTS, n - 1) + 1):
            refused, tries = self._try(position, pass_, (index + k) % n, tuple(refused)), tries + 1
            if not refused:
                break
        for t in refused:
            if self._unforeseen[t] == tries:
                raise LaneError(t, f"at {tries} samples in a row, the first one is {_reason(name, first[t])}")
        self._unforeseen.clear()
        self._blank(position, refused)

    def _blank(self, position: int, where: Iterable[int]) -> None:
        for t in where:
            target = self._targets[t]
            for field in (*(each for maker in target.makers for each in maker.fields), *target.taken):
                target.rows.put(field.name, position, field.kind.blank)

    def _try(self, position: int, pass_: int, index: int, where: tuple[int, ...]) -> dict[int, str]:
        """Puts sample `index` into the row of `position` in targets `where`; returns why some of them refuse it."""
        self._mark(position, index)
        if index in self._stream.quarantined:
            return dict.fromkeys(where, "quarantined: workers died or hung on it")
        refused = dict.fromkeys(
            (t for t in where if index in self._targets[t].quarantined),
            "quarantined for this pipeline: workers died or hung while they made its row",
        )
        if refused:
            where = tuple(t for t in where if t not in refused)
        if not where:
            return refused
        begun_ns = time.monotonic_ns()
        stamp = self._caches.stamp(index)
        ready = self._caches.hits(index, stamp, where)
        missing = without(where, ready)
        record: Record | None = None
        try:
            record = self._caches.read(index, stamp, _read) if missing else None
        except SampleError as e:
            refused |= dict.fromkeys(missing, e.reason)
        except (OSError, MemoryError):
            raise
        except Exception as e:  # noqa: BLE001 - the sample is to blame, unless its replacements raise it too
            refused |= self._is_unforeseen(e, missing)
        finally:
            read_ns = time.monotonic_ns()
            self._read_ns += read_ns - begun_ns
        try:
            if record is not None:
                ready += self._caches.keep(index, stamp, record, missing)
            for each in ready:
                refused |= self._make(each, SampleKey(self._stream.seed, pass_, index), position)
                self._take(each, position, index, refused)
        finally:
            self._clock(DECODING)
            self._make_ns += time.monotonic_ns() - read_ns
        return refused

    def _take(self, ready: Ready, position: int, index: int, refused: dict[int, str]) -> None:
        for t in ready.where:
            if t not in refused:
                target = self._targets[t]
                for field in target.taken:
                    value = index if field.column == INDEX else ready.record[field.column]
                    target.rows.put(field.name, position, value)

    def _begin(self, target: int) -> None:
        self._clock(target)
        self._step(target)

    def _clock(self, target: int) -> None:
        """Counts CPU time for `target`, or for all, from now on; not needed with one target."""
        if len(self._targets) > 1:
            now_ns = time.thread_time_ns()  # some 0.5 us
            self._cpu_ns[self._at] += now_ns - self._at_ns
            self._at, self._at_ns = target, now_ns

    def _make(self, ready: Ready, key: SampleKey, position: int) -> dict[int, str]:
        alone = [(t,) for t in ready.where if self._targets[t].mixers]  # their rows have other samples in them
        together = without(ready.where, [ready._replace(where=each) for each in alone])
        refused: dict[int, str] = {}
        for where in (*alone, together) if together else alone:
            refused |= self._make_at_once(ready._replace(where=where), key, position)
        return refused

    def _make_at_once(self, ready: Ready, key: SampleKey, position: int) -> dict[int, str]:
        where = ready.where
        whose = [t for t in where for _ in self._targets[t].makers]

        def step(place: int) -> None:
            self._begin(place if place == DECODING else whose[place])

        try:
            if self._targets[where[0]].mixers:
                self._partners.make(where[0], ready, key, position, self._mark, step)
            else:
                self._make_rows(ready, key, position, step)
        except BadSample as e:
            refused: dict[int, str] = {}
            for place, reason in sorted(e.failures.items()):
                refused.setdefault(whose[place], reason)
            return refused
        except Exception as e:  # noqa: BLE001 - whose it is, is found below
            if len(where) == 1:
                self._raise_shortage(e, where[0], key.index)
                return self._is_unforeseen(e, where)
        else:
            return {}
        # To find the target to blame, each row is made again by itself; rows are pure.
        found: dict[int, str] = {}
        for t in where:
            self._begin(DECODING)
            found |= self._make_at_once(ready._replace(where=(t,)), key, position)
        return found

    def _raise_shortage(self, error: Exception, target: int, index: int) -> None:
        if isinstance(error, BrokenContainerError):  # of a partner: the lane is not to blame
            raise error
        if is_shortage(error):
            name = self._stream.source.name(index)
            raise LaneError(target, f"at {_reason(name, describe(error))}") from error

    def _make_rows(self, ready: Ready, key: SampleKey, position: int, step: NextTarget) -> None:
        outs = [
            (maker, [target.rows.row(field.name, position) for field in maker.fields])
            for target in (self._targets[t] for t in ready.where)
            for maker in (target.tails if ready.is_tail else target.makers)
        ]
        rows = Rows(ready.record, key, outs, step)
        if rows.begin():
            return
        if self._may_wait and rows.postpone():
            self._waiting.append((position, key.index, rows))
        else:
            rows.finish()

    def _is_unforeseen(self, error: Exception, where: tuple[int, ...]) -> dict[int, str]:
        if not self._unforeseen:  # once for each position
            plugin = isinstance(error, PluginError)  # whose text says all but where in the plug-in
            _log.warning(error if plugin else "unexpected error", exc_info=error.__cause__ if plugin else error)
        self._unforeseen.update(where)
        return dict.fromkeys(where, describe(error))


def describe(error: Exception) -> str:
    """Class, text and notes of an error; the text alone if it was written to be shown."""
    notes = list(getattr(error, "__notes__", ()))
    if isinstance(error, MemoryError):
        notes.append("worker_memory in the configuration limits each worker's own data")
    name = "" if isinstance(error, BadFile | BrokenContainerError) else f"{type(error).__name__}: "
    return f"{name}{error}" + (f" ({'; '.join(notes)})" if notes else "")


def _read(source: Source, index: int) -> Record:
    """`source.read`, tried again after a while if the system's error may be transient.

    Raises:
        SampleError: The sample is bad.
        OSError: The process lacks a resource for longer than this waits: see `prepserver.transform.is_shortage`.
    """
    for wait_s in _RETRY_AFTER_S:
        try:
            return source.read(index)
        except OSError as e:
            # A SampleError has no errno, but the system call that caused it has one. The cause gets no name here: a
            # local variable with an exception is a reference cycle through the traceback, which would keep the rings of
            # dropped lanes mapped until the garbage collector runs.
            if (e.__cause__.errno if isinstance(e.__cause__, OSError) else e.errno) not in _TRANSIENT:
                raise
            time.sleep(wait_s)
    return source.read(index)


def _reason(name: str, why: str) -> str:
    name = printable(name)
    why = printable(" ".join(why.split()))[: MAX_REASON_CHARS // 2]
    room = MAX_REASON_CHARS - len(why) - 2
    if len(name) > room:
        name = "..." + name[len(name) - room + 3 :]  # the end of a path tells more than its beginning
    return f"{name}: {why}"
