"""Fills the rows of a run of positions: read, decode, augment, straight into the rings.

The heart of a worker, and of the client's inline mode, where the same lines run in the calling process. It
knows neither sockets nor processes; given the same stream and positions it puts the same bytes, wherever
and however often it runs.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from prepserver.order import NO_SAMPLE, Order
from prepserver.protocol.work import MAX_REASON_CHARS
from prepserver.source import Sample, SampleError, Source
from prepserver.source.errors import printable
from prepserver.transform import BadSample, RowMaker, SampleKey, make_rows

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
        """The row of `position` in `field` (an image): writable memory."""

    def put(self, position: int, label: int, index: int) -> None:
        """The numbers of a row, written when its images are there."""


Target = tuple[Mapping[str, RowMaker], Rows]
"""The makers of a lane's images by their field (`prepserver.transform.row_makers`), and where they go."""

Mark = Callable[[int, int], None]


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
    """

    bad: list[BadRow]
    read_ns: int
    make_ns: int


def fill(stream: Stream, targets: Sequence[Target], position: int, count: int, mark: Mark) -> FillResult:
    """Fills the rows of positions [position, position + count) in every target.

    A sample that cannot be had is replaced by the next ones by index, so by a rule of the position alone:
    sample ``(index + k) % n`` for k = 1 .. `REPLACEMENTS`, with its own augmentations of this pass; the row's
    label and index are the replacement's. If none can be had the row is zeros, label and index `NO_SAMPLE`.
    A target whose pipeline takes a sample keeps it, whatever the other targets' pipelines say of it. All views of
    a row are of one sample: where one of them cannot be made, all are the replacement's.

    Args:
        stream: The samples.
        targets: Makers and rows of each lane; one decode serves them all.
        position: The first.
        count: How many, 1 or more.
        mark: Called with (position, index) before each sample, replacements included.

    Raises:
        Exception: Something that is not the sample's fault; rows may hold anything and are to be filled again.
    """
    return _Filler(stream, targets, mark).run(position, count)


class _Filler:
    def __init__(self, stream: Stream, targets: Sequence[Target], mark: Mark) -> None:
        self._stream = stream
        self._targets = targets
        self._mark = mark
        self._everywhere = tuple(range(len(targets)))
        self._bad: list[BadRow] = []
        self._read_ns = 0
        self._make_ns = 0

    def run(self, position: int, count: int) -> FillResult:
        n = self._stream.order.n
        for p, index in enumerate(self._stream.order.indices(position, count), position):
            if index == NO_SAMPLE:
                self._blank(p, self._everywhere)  # nobody gets it, but a row is a function of its position
                continue
            refused = self._try(p, p // n, index, self._everywhere)
            if refused:
                self._replace(p, p // n, index, refused)
        return FillResult(self._bad, self._read_ns, self._make_ns)

    def _replace(self, position: int, pass_: int, index: int, refused: dict[int, str]) -> None:
        name = self._stream.source.name(index)
        for why in dict.fromkeys(refused.values()):
            where = tuple(t for t in refused if refused[t] == why)
            self._bad.append(BadRow(position, index, _reason(name, why), where))
        n = self._stream.order.samples
        for k in range(1, min(REPLACEMENTS, n - 1) + 1):
            refused = self._try(position, pass_, (index + k) % n, tuple(refused))
            if not refused:
                return
        self._blank(position, refused)

    def _blank(self, position: int, where: Iterable[int]) -> None:
        for t in where:
            makers, rows = self._targets[t]
            for field in makers:
                rows.row(field, position)[...] = 0
            rows.put(position, NO_SAMPLE, NO_SAMPLE)

    def _try(self, position: int, pass_: int, index: int, where: tuple[int, ...]) -> dict[int, str]:
        """Puts sample `index` into the row of `position` of the targets `where`; returns who refused, and why."""
        self._mark(position, index)
        if index in self._stream.quarantined:
            return dict.fromkeys(where, "quarantined: workers died or hung on it")
        begun_ns = time.monotonic_ns()
        try:
            sample = _read(self._stream.source, index)
        except SampleError as e:
            return dict.fromkeys(where, e.reason)
        finally:
            read_ns = time.monotonic_ns()
            self._read_ns += read_ns - begun_ns
        try:
            refused = self._make(sample, SampleKey(self._stream.seed, pass_, index), position, where)
        except Exception as e:
            e.add_note(f"at sample {index} ({printable(self._stream.source.name(index))}), position {position}")
            raise
        finally:
            self._make_ns += time.monotonic_ns() - read_ns
        for t in where:
            if t not in refused:
                self._targets[t][1].put(position, sample.label, index)
        return refused

    def _make(self, sample: Sample, key: SampleKey, position: int, where: tuple[int, ...]) -> dict[int, str]:
        outs, whose = [], []
        for t in where:
            makers, rows = self._targets[t]
            for field, maker in makers.items():
                outs.append((maker, rows.row(field, position)))
                whose.append(t)
        refused: dict[int, str] = {}
        try:
            make_rows(sample.data, key, outs)
        except BadSample as e:
            for place, reason in sorted(e.failures.items()):
                refused.setdefault(whose[place], reason)
        return refused


def _read(source: Source, index: int) -> Sample:
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
