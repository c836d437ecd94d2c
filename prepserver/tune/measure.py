"""Measures points with a real daemon, whose workers come and go, and a loop that takes batches at the pace of a step.

Each point reads other samples (another seed), from the page cache or from storage, as a job's first epoch does. A cache
is measured full, on as many samples as one point reads, and the result is scaled to the fraction of the dataset for
which the daemon's budget has room.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from prepclient import PrepClient, PrepClientError
from prepserver.demo.processes import DemoServer, running_server, scratch_folder
from prepserver.pack import PackError
from prepserver.pack.report import Report
from prepserver.pack.run import Options, pack
from prepserver.pack.transcode import Transcoder
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.op import Op
from prepserver.pipeline.record import images
from prepserver.pipeline.source import SourceSpec
from prepserver.pipeline.sources import Packed, Take
from prepserver.transform import native
from prepserver.tune.points import Point, with_part

_SETTLE_BATCHES = 2
_LEAST_BATCHES = 4
_LONGEST = 4.0  # slow batches may prolong a measurement by this factor
_RESIZE_S = 10.0
_MOST_SAMPLES = 2000  # at most this many are packed, or put into a cache, to measure that
# A job uses every cache of its dataset, so each form is measured on another dataset: with one sample less.
_CACHES = ("encoded", "decoded")


@dataclass(frozen=True, slots=True)
class Job:
    """The job to tune."""

    source: SourceSpec
    ops: tuple[Op, ...]
    batch_size: int  # rows that a step takes, of all ranks
    views: int = 1  # images of each sample
    shuffle: bool | str = True  # as in `PrepClient`
    step_s: float = 0.0  # duration of a training step; 0 for a loop that takes all it gets
    plugins: tuple[str, ...] = ()

    @property
    def wanted_per_s(self) -> float:
        """Images/s that the loop takes if it never waits."""
        return self.batch_size / self.step_s if self.step_s else float("inf")


class Stopped(Exception):
    """The user stopped the measurements."""


class NotMeasured(Exception):
    """A point cannot be measured; the text says why."""


@dataclass(eq=False)
class Bench:
    """A daemon to measure with."""

    job: Job
    seconds: float  # of each point
    server: DemoServer
    scratch: Path  # for packed samples and the daemon's file of settings
    is_stopped: Callable[[], bool]  # whether to stop now; asked at every batch
    _seeds: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _packed: SourceSpec | None = None
    _samples: int = 0  # of the dataset
    _rates: dict[tuple[int, bool], float] = field(default_factory=dict)  # without a cache, by workers and packing

    def images_per_s(self, point: Point) -> float:
        """The samples/s that the loop gets; may raise `NotMeasured`, or `Stopped` if the user wants no more."""
        self._resize(point.workers)
        source = self._pack() if point.packed else self.job.source
        try:
            if not point.cache:
                rate = self._rates[point.workers, point.packed] = self._read(source, point, next(self._seeds))
                return rate
            few = Take(source, max(self.job.batch_size, self._few - _CACHES.index(point.cache)))
            hit_per_s = self._read(few, point, next(self._seeds), fill=True)
        except (PrepClientError, SpecError) as e:
            raise NotMeasured(str(e)) from e
        miss_per_s = self._rates.get((point.workers, point.packed)) or hit_per_s
        return min(self.job.wanted_per_s, with_part(self._part(point.cache), hit_per_s, miss_per_s))

    @functools.cached_property
    def _few(self) -> int:
        """Samples to cache or to pack: about as many as one point reads. Fixed, because the caches are kept."""
        rate = max(self._rates.values(), default=0.0)
        few = max(2 * self.job.batch_size, min(_MOST_SAMPLES, round(rate * self.seconds)))
        return min(few, self._samples)

    def _read(self, source: SourceSpec, point: Point, seed: int, *, fill: bool = False) -> float:
        job = self.job
        with PrepClient(
            source, job.ops, views=job.views, batch_size=job.batch_size, shuffle=job.shuffle, seed=seed,
            prefetch=point.prefetch or None, cache=point.cache or None, job="tune", on_error="skip", drop_last=True,
            runtime_dir=self.server.attach_socket.parent,
        ) as train:  # fmt: skip
            if source is job.source:
                self._samples = train.samples
            if not len(train):
                raise NotMeasured(f"the dataset has {train.samples} samples, fewer than a batch of {job.batch_size}")
            if fill:
                for _ in train:
                    self._look()
            return self._rate(train)

    def _rate(self, train: PrepClient) -> float:
        batches = itertools.chain.from_iterable(itertools.repeat(train))
        began_s = end_s = time.monotonic()
        due_s, taken = 0.0, -_SETTLE_BATCHES
        for _ in batches:
            self._look()
            end_s = time.monotonic()
            taken += 1
            if taken == 0:
                began_s = end_s
            elif taken > 0:
                spent_s = end_s - began_s
                if spent_s >= self.seconds * (1.0 if taken >= _LEAST_BATCHES else _LONGEST):
                    break
            if self.job.step_s:
                due_s = max(due_s, end_s) + self.job.step_s  # a GPU that waited cannot catch up
                time.sleep(max(0.0, due_s - time.monotonic()))
        return taken * self.job.batch_size / (end_s - began_s)

    def _look(self) -> None:
        if self.is_stopped():
            raise Stopped

    def _pack(self) -> SourceSpec:
        if self._packed is None:
            folder = self.scratch / "packed"
            options = Options(Transcoder(native.kernels() is not None), workers=os.cpu_count() or 1, skip=True)
            try:
                pack(Take(self.job.source, self._few), folder, options, Report())
            except (PackError, SpecError, OSError) as e:
                raise NotMeasured(f"not packed: {e}") from e
            columns = self.job.source.columns
            self._packed = Packed(str(folder), columns=None if columns == images() else columns)
        return self._packed

    def _part(self, form: str) -> float:
        """The fraction of the dataset for which the daemon's caches have room."""
        found = self.server.status()
        held = max((cache for cache in found["caches"] if cache["form"] == form), key=lambda cache: int(cache["id"]))
        budget = found["memory"]["caches_budget_bytes"]
        whole = held["bytes"] / max(1, held["rows"]) * self._samples
        return float(min(1.0, budget / max(1.0, whole)))

    def _resize(self, workers: int) -> None:
        write_config(self.scratch, workers)
        os.kill(self.server.pid, signal.SIGHUP)
        end_s = time.monotonic() + _RESIZE_S
        while True:
            states = [worker["state"] for worker in self.server.status()["workers"]]
            if len(states) == workers and "starting" not in states:
                return
            if time.monotonic() > end_s:
                raise NotMeasured(f"{workers} workers did not start within {_RESIZE_S:g} s")
            self._look()
            time.sleep(0.05)


def write_config(scratch: Path, workers: int) -> Path:
    """Writes the settings of the measuring daemon."""
    new = scratch / "config.new"
    new.write_text(f"workers = {workers}\n")
    return new.replace(scratch / "config.toml")


def _end(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Makes SIGTERM, and SIGHUP of a closed terminal, leave no files behind."""
    numbers = (each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_DFL)
    before = {number: signal.signal(number, _end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def bench(job: Job, seconds: float, most: int, is_stopped: Callable[[], bool]) -> Iterator[Bench]:
    """Runs a daemon for measurements; raises `DemoFailure` if it does not start."""
    with _ended_in_order(), scratch_folder("prepserver-tune-") as scratch:
        config = write_config(scratch, most)  # the size of rings depends on it
        paths = [os.path.abspath(path) for path in sys.path] if job.plugins else []
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), *paths]))}
        arguments = [
            *("--config", str(config)),
            *(part for plugin in job.plugins for part in ("--plugin", plugin)),
            *(("--plugin-read", "/") if job.plugins else ()),
            *(part for root in job.source.stores for part in ("--root", root)),
        ]
        with running_server(scratch, arguments, env) as server:
            yield Bench(job, seconds, server, scratch, is_stopped)
