"""Fills the rows of a run of positions: read, decode, augment, straight into the rings.

The heart of a worker, and of the client's inline mode, where the same lines run in the calling process. It
knows neither sockets nor processes; given the same stream and positions it puts the same bytes, wherever
and however often it runs.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

from prepserver.order import NO_SAMPLE, Order
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import INDEX, RowField
from prepserver.protocol.work import MAX_REASON_CHARS
from prepserver.source import Record, SampleError, Source
from prepserver.source.errors import printable
from prepserver.transform import DECODING, BadSample, RowMaker, SampleKey, make_rows, row_makers

_log = logging.getLogger(__name__)

REPLACEMENTS = 8
"""How many neighbours are tried for a bad sample. Damage comes in runs (a lost shard, a broken copy); past
so many in a row the answer is a bad dataset, which zeros and the reason say better than one more neighbour. Label and
index of such a row of zeros are `NO_SAMPLE`."""

_TRANSIENT = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT),
        *(errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    }
)
_RETRY_AFTER_S = (0.01, 0.1)


class Rows(Protocol):
    """Where rows are put: `prepserver.memory.ring.Ring`, or arrays of the caller's."""

    def row(self, field: str, position: int) -> npt.NDArray[Any]:
        """The row of `position` in `field`: writable memory."""

    def put(self, field: str, position: int, value: Any) -> None:
        """Writes the row of `position` in `field`, a number or an array."""


class Target(NamedTuple):
    """A lane.

    Attributes:
        makers: Of each view (`prepserver.transform.row_makers`).
        taken: Fields that are taken from the record as they are, written when all else is there.
        rows: Where they go.
        quarantined: Indices that are bad for this pipeline: workers died or hung in it.
    """

    makers: Sequence[RowMaker]
    taken: Sequence[RowField]
    rows: Rows
    quarantined: Container[int] = frozenset()

    @classmethod
    def of(cls, pipeline: Pipeline, rows: Rows, quarantined: Container[int] = frozenset()) -> Target:
        """The lane of a pipeline."""
        makers = row_makers(pipeline)
        made = {field.name for maker in makers for field in maker.fields}
        return cls(makers, [field for field in pipeline.fields if field.name not in made], rows, quarantined)


Mark = Callable[[int, int], None]
Step = Callable[[int], None]


class LaneError(Exception):
    """One target's rows cannot be made, for no fault of the samples; the others' can.

    Attributes:
        target: Its place in `fill`'s sequence.
    """

    def __init__(self, target: int, text: str) -> None:
        super().__init__(text)
        self.target = target


@dataclass(slots=True)
class Stream:
    """An endless line of samples.

    Attributes:
        source: Where they come from.
        order: Which comes when.
        seed: Of the augmentations.
        quarantined: Indices that are bad without being read: they have killed workers.
    """

    source: Source
    order: Order
    seed: int
    quarantined: Container[int] = frozenset()


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that does not hold the sample of its position.

    Attributes:
        position: Of the row.
        index: Of the sample that should be there.
        reason: ``path: why``, one line, at most `MAX_REASON_CHARS`.
        targets: Which of the targets (their places in `fill`'s sequence) hold a replacement; all of them when
            the sample cannot be read or decoded, some when only their pipelines refuse it.
    """

    position: int
    index: int
    reason: str
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FillResult:
    """What `fill` did.

    Attributes:
        bad: Rows with a replacement or zeros, in order of position.
        read_ns: Time in reading encoded bytes.
        make_ns: Time in decode and augmentation.
        shared_ns: CPU time in which nothing was rendered for a target. 0 where there is one target.
        targets_ns: CPU time in rendering, for each target. Empty where there is one.
    """

    bad: list[BadRow]
    read_ns: int
    make_ns: int
    shared_ns: int = 0
    targets_ns: tuple[int, ...] = ()


def _unmarked(_target: int) -> None:
    """Nobody asks how far it has got."""


def fill(
    stream: Stream, targets: Sequence[Target], position: int, count: int, mark: Mark, step: Step = _unmarked
) -> FillResult:
    """Fills the rows of positions [position, position + count) in every target.

    A sample that cannot be had is replaced by the next ones by index, so by a rule of the position alone:
    sample ``(index + k) % n`` for k = 1 .. `REPLACEMENTS`, with its own augmentations of this pass; the row's
    label and index are the replacement's. If none can be had the row is zeros, label and index `NO_SAMPLE`.
    A target whose pipeline takes a sample keeps it, whatever the other targets' pipelines say of it. All views of
    a row are of one sample: where one of them cannot be made, all are the replacement's.
    An error that nobody foresaw is found in one target alone, too: the sample is bad for it, with the error for a
    reason. Where it meets all the replacements as well, it is not theirs, and the target fails.

    Args:
        stream: The samples.
        targets: Makers and rows of each lane; one decode serves them all.
        position: The first.
        count: How many, 1 or more.
        mark: Called with (position, index) before each sample, replacements included.
        step: Called with a target's place before its row is rendered, with `DECODING` when that is done.

    Raises:
        LaneError: One target cannot be filled.
        Exception: Something that is neither the sample's fault nor a target's. In both cases rows may hold anything
            and are to be filled again.
    """
    return _Filler(stream, targets, mark, step).run(position, count)


class _Filler:
    def __init__(self, stream: Stream, targets: Sequence[Target], mark: Mark, step: Step) -> None:
        self._stream = stream
        self._targets = targets
        self._mark = mark
        self._step = step
        self._unforeseen: Counter[int] = Counter()  # errors at the position in hand, by target
        self._everywhere = tuple(range(len(targets)))
        self._bad: list[BadRow] = []
        self._read_ns = 0
        self._make_ns = 0
        self._cpu_ns = [0] * (len(targets) + 1)  # by target; the last place is that of `DECODING`
        self._at, self._at_ns = DECODING, time.thread_time_ns()  # what is being done, and since when

    def run(self, position: int, count: int) -> FillResult:
        n = self._stream.order.n
        for p, index in enumerate(self._stream.order.indices(position, count), position):
            if index == NO_SAMPLE:
                self._blank(p, self._everywhere)  # nobody gets it, but a row is a function of its position
                continue
            refused = self._try(p, p // n, index, self._everywhere)
            if refused:
                self._replace(p, p // n, index, refused)
        if len(self._targets) == 1:
            return FillResult(self._bad, self._read_ns, self._make_ns)
        *targets_ns, shared_ns = self._cpu_ns
        return FillResult(self._bad, self._read_ns, self._make_ns, shared_ns, tuple(targets_ns))

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
        """Puts sample `index` into the row of `position` of the targets `where`; returns who refused, and why."""
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
        try:
            record = _read(self._stream.source, index)
        except SampleError as e:
            return refused | dict.fromkeys(where, e.reason)
        except (OSError, MemoryError):
            raise
        except Exception as e:  # noqa: BLE001 - whatever it is, it is this sample's until others show it too
            return refused | self._is_unforeseen(e, where)
        finally:
            read_ns = time.monotonic_ns()
            self._read_ns += read_ns - begun_ns
        try:
            refused |= self._make(record, SampleKey(self._stream.seed, pass_, index), position, where)
        finally:
            self._clock(DECODING)
            self._make_ns += time.monotonic_ns() - read_ns
        for t in where:
            if t not in refused:
                target = self._targets[t]
                for field in target.taken:
                    target.rows.put(field.name, position, index if field.column == INDEX else record[field.column])
        return refused

    def _begin(self, target: int) -> None:
        self._clock(target)
        self._step(target)

    def _clock(self, target: int) -> None:
        """What is done from now on is for `target`, or for all. With one target nobody asks."""
        if len(self._targets) > 1:
            now_ns = time.thread_time_ns()  # some 0.5 us
            self._cpu_ns[self._at] += now_ns - self._at_ns
            self._at, self._at_ns = target, now_ns

    def _make(self, record: Record, key: SampleKey, position: int, where: tuple[int, ...]) -> dict[int, str]:
        outs, whose = [], []
        for t in where:
            rows = self._targets[t].rows
            for maker in self._targets[t].makers:
                outs.append((maker, [rows.row(field.name, position) for field in maker.fields]))
                whose.append(t)
        try:
            make_rows(record, key, outs, lambda place: self._begin(place if place == DECODING else whose[place]))
        except BadSample as e:
            refused: dict[int, str] = {}
            for place, reason in sorted(e.failures.items()):
                refused.setdefault(whose[place], reason)
            return refused
        except Exception as e:
            if len(where) == 1:
                if _is_shortage(e):
                    name = self._stream.source.name(key.index)
                    raise LaneError(where[0], f"at {_reason(name, _text(e))}") from e
                return self._is_unforeseen(e, where)
        else:
            return {}
        # Whose error was it? A row is pure, so each may be made again, by itself.
        found: dict[int, str] = {}
        for t in where:
            self._begin(DECODING)
            found |= self._make(record, key, position, (t,))
        return found

    def _is_unforeseen(self, error: Exception, where: tuple[int, ...]) -> dict[int, str]:
        if not self._unforeseen:  # once for each position
            _log.warning("an error that nobody foresaw", exc_info=error)
        self._unforeseen.update(where)
        return dict.fromkeys(where, _text(error))


def _is_shortage(error: Exception) -> bool:
    """Whether the process is short of something. That is no property of the sample, so no row may come of it."""
    return isinstance(error, OSError | MemoryError) or "allocate memory" in str(error)  # torch's is a RuntimeError


def _text(error: Exception) -> str:
    notes = "; ".join(getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error}" + (f" ({notes})" if notes else "")


def _read(source: Source, index: int) -> Record:
    """`source.read`, again after a while where the system says that it may be better then.

    Raises:
        SampleError: The sample is bad.
        OSError: The process is short of something for longer than we wait. That is no property of the
            sample, so no row may come of it.
    """
    for wait_s in _RETRY_AFTER_S:
        try:
            return source.read(index)
        except OSError as e:
            # a SampleError has no number of its own, but the system call behind it has
            # Asked without a name for the cause: a local that holds an exception is a cycle through its
            # traceback, and would keep the rings of dropped lanes mapped for as long as nothing collects.
            if (e.__cause__.errno if isinstance(e.__cause__, OSError) else e.errno) not in _TRANSIENT:
                raise
            time.sleep(wait_s)
    return source.read(index)


def _reason(name: str, why: str) -> str:
    name = printable(name)
    why = " ".join(why.split())[: MAX_REASON_CHARS // 2]
    room = MAX_REASON_CHARS - len(why) - 2
    if len(name) > room:
        name = "..." + name[len(name) - room + 3 :]  # the end of a path says more than its beginning
    return f"{name}: {why}"
