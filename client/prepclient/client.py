"""`PrepClient`: in the DataLoader's place.

It joins the parts: the checked spec, a feed (a daemon's ring or this process), a session over it, and a stage
that turns rows into tensors. Each is replaced as a whole when the client starts anew.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Never

import torch
from torch.utils.data import get_worker_info

from prepclient.dataset import BatchSampler, Dataset, Sampler, class_names
from prepclient.device import DeviceStage, Engine, check_device
from prepclient.equivalents import refuse_loader_arguments
from prepclient.errors import (
    BadSampleError,
    ForkedClient,
    InvalidSpec,
    NoServer,
    PrepClientError,
    ServerGone,
    SourceChanged,
)
from prepclient.feed import Feed, Listing, ServedFeed, Start
from prepclient.finish import Finish, looks_of
from prepclient.forks import resume_threads, stop_threads
from prepclient.inline import InlineFeed
from prepclient.places import find_runtime_dir
from prepclient.private import PrivateDaemon, private_daemon
from prepclient.progress import ScanProgress
from prepclient.session import Handed, Session, Totals
from prepclient.spec import VALID, Fields, OnError, check_choice, check_fields, flag, make_spec, seconds, whole
from prepclient.stages import CudaStage, HostStage, Stage, Step, valid_rows
from prepclient.transport import check_descriptors, connect
from prepclient.turns import Turn, Turns, in_turn
from prepserver.pipeline.batches import Batching
from prepserver.pipeline.checks import integer
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.ops import Op
from prepserver.pipeline.sources import SourceSpec
from prepserver.protocol.messages import Lag

log = logging.getLogger("prepclient")

_STATE_VERSION = 1
_RETRY_FIRST_S = 0.02  # a daemon that is started again listens within a second or two
_RETRY_MOST_S = 0.2  # asking costs one connect


class PrepClient(Turns):
    """Batches of a dataset, made by a prepserver daemon and shared with every job that asks for the same.

    Iterating gives one epoch, like a DataLoader::

        train = PrepClient(ImageFolder("/data/train"), [RandomResizedCrop(224), RandomHorizontalFlip()],
                           batch_size=256, shuffle=True, seed=0, device="cuda")
        for epoch in range(90):
            for images, labels in train:
                ...

    Nothing happens before the first use (`iter`, `len`, `samples`). Leaving an epoch early (``break``) and
    iterating again begins the next epoch. Threads may take turns; two at once are an error.

    Args:
        source: `ImageFolder`, `FileList`, `SyntheticImages` or `Packed`, as the daemon's machine sees it.
        ops: What is made of a sample; `Decode` comes first by itself. All rows must get one size.
        batch_size: Rows in a batch of this process.
        shuffle: False for the source's order; True for cyclic blocks (each sample once per epoch, and other
            jobs may join at any block); ``"full"`` for a new permutation each epoch.
        order: In which order samples are shuffled, batched and repeated, in tf.data's words:
            ``"shuffle-batch-repeat"``: a batch is of one epoch, the last one may be short. ``"shuffle-repeat-batch"``:
            batches cross from an epoch into the next, so all are full; an epoch's iterator ends with the batch that
            holds its last sample, the next one goes on behind that, and `len` may vary by one from epoch to epoch.
            ``"batch-shuffle-repeat"``: whole batches of consecutive samples are shuffled (with `shuffle` True or
            ``"full"``), and the short one, if any, stays last.
        seed: Of order and augmentation: the same seed gives the same bytes.
        drop_last: Leave out the rows that do not fill a batch at the end of an epoch.
        views: Images of each sample, 1 to 16, each with random numbers of its own (self-supervised training). Of
            more than one, a batch has a tuple in place of its images, one tensor for each view:
            ``for (a, b), labels in train``. The first view is what `views` = 1 gives.
        device: None or ``"cpu"`` for host tensors, ``"cuda[:i]"`` to have batches copied there ahead.
        prefetch: Rows to have ready ahead of this job; None lets the daemon fill its ring.
        timeout_s: Longest wait for a batch, for the daemon's answer, or for a place with a daemon that is busy. After
            30 s of waiting for a batch a log line says for what.
        runtime_dir: The daemon's; None for ``$PREPSERVER_RUNTIME_DIR`` or the usual places.
        rank: This process among the data-parallel ones; None takes torch.distributed's or the launcher's.
        world_size: How many there are; with shards, how many read this shard.
        num_shards: Parts into which each pass is dealt, one for each machine of the run, so that a machine makes the
            rows of its own processes only. None takes one shard per machine where torchrun says that all machines run
            equally many processes and `rank` is not given, else 1. An epoch then begins at the same place on all
            machines, at once.
        shard_index: Which of them this machine reads.
        job: Name of the run, the same in all ranks; for `prepserver status` and the audit.
        on_error: What to do with a sample that cannot be made: ``"raise"`` `BadSampleError`; ``"skip"``
            silently takes its replacement (another sample, by a rule of the position); ``"mask"`` takes it too
            and adds a field ``valid`` (bool, False in such rows).
        fields: ``"tuple"`` for the source's columns in order, ``(images, labels)`` mostly; ``"dict"`` for these by
            name and ``index``, the sample's place in the source; or names in the order in which a tuple of them is
            wanted.
        zero_copy: Lend memory instead of handing out fresh tensors: read-only views of the ring on the CPU
            (a write is a segmentation fault), device buffers on a GPU. Valid until the next step. Ignored where
            `normalize`, `dtype` or `memory_format` make new tensors anyway.
        normalize: ``(mean, std)`` per channel, computed where the batch ends up.
        dtype: ``torch.float16``, ``torch.bfloat16`` or ``torch.float32``; uint8 rows are scaled by 1/255.
        memory_format: ``torch.channels_last`` (what uint8 rows are anyway) or ``torch.contiguous_format``.
        inline: Make the rows in this process: no daemon, the same bytes.
        workers: Where no daemon runs, start a private one with so many workers. All clients of this process that ask
            for one share it; it ends when the last of them is closed or collected, or with the process.
        plugins: Code of your own that makes rows: names of entry points, of modules, or ``module:object``, which
            `PluginOp` and `Plugin` then use. For `inline` and for the private daemon of `workers`; the configuration of
            a shared daemon names its own.
        join_wait_s: How long to rather wait for a running stream than have an own one for ever. The first batches
            come at once all the same; the wait comes after them. 0 never waits; more than a third of `timeout_s`
            counts as that.
        reconnect_s: How long to wait for a daemon that went away (a restart) before `ServerGone` is raised; the
            batches go on with the very rows that they would have had. 0 raises at once.
        lag: What happens when this job is slower than those that it shares with: ``"wait"`` (they wait for it),
            ``"detach"`` (it goes on with a stream of its own, the same bytes), ``"skip"`` (it loses batches;
            `stats` counts them), ``"auto"`` (detach while workers are idle, else wait). Jobs of other users never wait
            for it: it goes on with a stream of its own.
        start: Where epoch 0 begins. With `shuffle` True an epoch has each sample once, but while other jobs run it
            starts wherever this job can join them: two runs with the same seed may then see different orders.
            ``"first"`` always begins at position 0 and shares only with jobs that stand there; later epochs follow
            from there. A number, as `stats` gives it as ``"start"``, begins where another run did. Where no epoch can
            begin in this order, it is refused at the first use, and the next number that can be is named; with shards,
            or ranks on other machines, 0 is the only one. ``"any"`` joins wherever it can. None is ``"first"`` where
            ``torch.use_deterministic_algorithms`` is on, else ``"any"``.

    Images are ``[batch, C, H, W]`` (uint8, channels_last in memory) unless the ops say otherwise; labels int64.

    Raises:
        InvalidSpec: An argument that cannot be, before anything is sent; the text names it.
    """

    def __init__(
        self,
        source: SourceSpec,
        ops: Sequence[Op],
        *,
        batch_size: int = 1,
        shuffle: bool | str = False,
        order: Batching = "shuffle-batch-repeat",
        seed: int = 0,
        drop_last: bool = False,
        views: int = 1,
        device: str | torch.device | None = None,
        prefetch: int | None = None,
        timeout_s: float = 600.0,
        runtime_dir: str | os.PathLike[str] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        num_shards: int | None = None,
        shard_index: int | None = None,
        job: str | None = None,
        on_error: OnError = "raise",
        fields: Fields = "tuple",
        zero_copy: bool = False,
        normalize: tuple[Sequence[float], Sequence[float]] | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        inline: bool = False,
        workers: int | None = None,
        plugins: str | Sequence[str] = (),
        join_wait_s: float = 30.0,
        reconnect_s: float = 300.0,
        lag: Lag = "auto",
        start: Literal["any", "first"] | int | None = None,
        **loader_arguments: Never,
    ) -> None:
        super().__init__()
        check_choice("lag", lag, ("auto", "wait", "detach", "skip"))
        check_choice("on_error", on_error, ("raise", "skip", "mask"))
        refuse_loader_arguments(loader_arguments)
        if prefetch is not None:
            prefetch = whole("prefetch", prefetch, 1, 2**31 - 1)
        if workers is not None:
            workers = whole("workers", workers, 1, 1024)
            if inline:
                raise InvalidSpec(
                    f"workers = {workers} with inline = True: inline makes the rows in this process, without workers. "
                    "Leave out one of the two",
                    "workers",
                )
        self.spec = make_spec(
            source, ops, batch_size=batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last, rank=rank,
            world_size=world_size, job=job, num_shards=num_shards, shard_index=shard_index, views=views, order=order,
        )  # fmt: skip
        self._names = check_fields(fields, on_error, self.spec.pipeline)
        try:
            self._finish = Finish(normalize, dtype, memory_format)
            self._looks = looks_of(self.spec.pipeline, self._finish)
        except SpecError as e:
            raise InvalidSpec(str(e), e.field) from e
        if lag == "skip" and self.spec.shape.world_size * self.spec.shape.shard.count > 1:
            raise InvalidSpec("lag = 'skip' would give ranks different numbers of batches: use 'detach'", "lag")
        self._device = _checked_device(device)
        self._prefetch = prefetch or 0
        self._timeout_s = seconds("timeout_s", timeout_s, above_zero=True)
        self._runtime_dir = _checked_path("runtime_dir", runtime_dir)
        self._on_error = on_error
        self._zero_copy = flag("zero_copy", zero_copy)
        self._inline = flag("inline", inline)
        self._workers = workers
        self._plugins = _checked_plugins(plugins, inline or workers is not None)
        self._join_wait_s = seconds("join_wait_s", join_wait_s)
        self._reconnect_s = seconds("reconnect_s", reconnect_s)
        self._lag: Lag = lag
        self._private: PrivateDaemon | None = None
        self._was_served = False
        self._first = _checked_start(start)
        self._start = Start()
        self._allow_changed = False
        self._began: int | None = None  # see `stats`
        self._listing: Listing | None = None  # by which `_start` counts
        self._classes: tuple[str, list[str]] | None = None  # by the listing's content
        self._feed: Feed | None = None
        self._session: Session | None = None
        self._pid = os.getpid()  # of the process that attached
        self._stage: Stage | None = None
        self._engine: Engine[Any] | None = None  # CUDA's
        self._device_stage: DeviceStage | None = None  # one for all attachments: it holds the device's memory
        self._leave: weakref.finalize[[int, list[Any]], PrepClient] | None = None  # also runs without a `close`
        self._may_continue = False  # the epoch was entered by load_state_dict: iterating goes on in it
        self._iterators = 0
        self._ends_at = -1  # the running iterator, by the number of batches
        self._begun: Handed | None = None  # where the last step began: if that is where we stand, it was broken off
        self._past = Totals()  # of earlier attachments

    # -- what a DataLoader has ------------------------------------------------------------------------

    @in_turn
    def __iter__(self) -> Iterator[Any]:
        """One epoch, from its beginning (or, after `load_state_dict`, what is left of it)."""
        session = self._attached()
        if not session.at_epoch_start and not self._continues:
            # Left in the middle: the next epoch begins, wherever on the stream one may.
            session = self._restart(Start(session.epoch + 1))
        self._may_continue = False
        self._iterators += 1
        self._ends_at = session.handed.totals.batches + session.batches_left
        return _Epoch(self, self._iterators, self._ends_at)

    def __len__(self) -> int:
        """Batches of a whole epoch, of this rank; of the one that comes or runs, where they differ (see `order`)."""
        return self._attached().batches_per_epoch

    @in_turn
    def set_epoch(self, epoch: int) -> None:
        """The next iteration is epoch number `epoch` (from 0), as DistributedSampler's.

        Counting up by one, as a loop does, changes nothing. Any other epoch starts the stream anew there.

        Raises:
            InvalidSpec: Not a whole number, or negative.
        """
        epoch = whole("epoch", epoch, 0, 2**40 - 1)
        session = self._session
        if session is None:
            # a loaded state stands in its epoch: naming that one keeps its place
            if not (self._continues and self._start.epoch == epoch):
                self._start = Start(epoch)
                self._may_continue, self._ends_at = False, -1
        elif session.epoch != epoch or not (session.at_epoch_start or self._continues):
            self._restart(Start(epoch))

    @property
    def batch_size(self) -> int:
        """Rows in a batch of this process."""
        return self.spec.shape.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether the rows that do not fill a batch are left out."""
        return self.spec.shape.drop_last

    @property
    def num_workers(self) -> int:
        """0: this process has no workers, the daemon has them."""
        return 0

    @property
    def prefetch_factor(self) -> None:
        """None, as of a DataLoader without workers."""

    @property
    def dataset(self) -> Dataset:
        """The source: its length, and its classes where they have names."""
        return Dataset(self)

    @property
    def sampler(self) -> Sampler:
        """For loops that call ``loader.sampler.set_epoch``."""
        return Sampler(self)

    @property
    def batch_sampler(self) -> BatchSampler:
        """As `sampler`, by batches: Lightning and accelerate look at it."""
        return BatchSampler(self)

    def __repr__(self) -> str:
        spec = self.spec
        shape = spec.shape
        return (
            f"PrepClient({spec.source}, {list(spec.pipeline.ops)}, batch_size={shape.batch_size}, "
            f"order={spec.shuffle!r}, seed={spec.seed}, drop_last={shape.drop_last}, rank={shape.rank}, "
            f"world_size={shape.world_size}, device='{self._device}', job={spec.job!r}, epoch={self.epoch})"
        )

    # -- what a DataLoader has not --------------------------------------------------------------------

    @property
    def samples(self) -> int:
        """Samples of the source: rows of an epoch, over all ranks of all shards."""
        return self._attached().samples

    @property
    def num_classes(self) -> int:
        """Distinct labels of the source, 0 if it has no notion of them."""
        self._attached()
        assert self._feed is not None
        return self._feed.num_classes

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next batch belongs to."""
        return self._session.epoch if self._session is not None else self._start.epoch

    def stats(self) -> dict[str, Any]:
        """Where this job's time goes: batches, images, replaced samples, and seconds held up by missing rows.

        ``start`` is where epoch 0 of the running epochs began, or would have begun; passed as `start` it gives another
        run with the same seed the same order. It is None before the first use.
        ``sharing_factor`` is how many rows jobs have got for each that the workers made for this job's stream: 3.0
        where three share it. The daemon is asked for it, in a few milliseconds; it is None while that is not there.
        """
        totals = self._totals
        return {
            "batches": totals.batches,
            "images": totals.images,
            "bad_samples": totals.bad,
            "lost_batches": self._session.lost_batches if self._session is not None else 0,
            "wait_s": totals.wait_ns / 1e9,
            "epoch": self.epoch,
            "start": self._began,
            "sharing_factor": self._feed.sharing_factor() if self._feed is not None else None,
        }

    def state_dict(self) -> dict[str, Any]:
        """Where the job stands: a few numbers, for a checkpoint.

        Valid for another batch size, number of workers, ranks, shards or machine, as long as the source (its labels
        and relative paths), order, seed and ops are the same. It is the same in all ranks of all shards, and says how
        many samples of the pass they have taken together; a number of shards that does not divide that is refused when
        the next batch is asked for. Where whole batches are shuffled (`order`), batch size and number of shards must be
        the same, too.
        """
        session = self._session
        if session is None:
            start = self._start
            position = start.position if start.checkpoint is None else start.checkpoint
            return self._state(start.epoch, start.epoch_start, position)
        return self._state(session.epoch, session.epoch_start, session.position)

    def _state(self, epoch: int, epoch_start: int | None, position: int | None) -> dict[str, Any]:
        return {
            "version": _STATE_VERSION,
            "spec": self.spec.digest,
            "epoch": epoch,
            "epoch_start": epoch_start,
            "position": position,
            "start": self._began,
            "source": self._listing.state() if self._listing else None,
        }

    @in_turn
    def load_state_dict(self, state: dict[str, Any], *, allow_changed: bool = False) -> None:
        """Goes on where `state_dict` was taken: at the very next sample.

        A dataset that has other samples than when the state was taken is noticed at the next use: `SourceChanged`.

        Args:
            state: From `state_dict`.
            allow_changed: Begin the state's epoch anew with such a dataset instead: positions mean nothing in it.

        Raises:
            InvalidSpec: Not such a state, or one of another source, order, seed or pipeline.
        """
        names = {"version", "spec", "epoch", "epoch_start", "position"}
        # "source" and "start" came later: what was saved before has none
        if (
            not isinstance(state, dict)
            or set(state) - {"source", "start"} != names
            or state["version"] != _STATE_VERSION
        ):
            raise InvalidSpec(f"not a state of a PrepClient (version {_STATE_VERSION}): {state!r}", "state_dict")
        try:
            epoch = whole("epoch", state["epoch"], 0, 2**62)
            place = [state["epoch_start"], state["position"]]
            if place != [None, None]:  # it was taken before anything was read
                place = [whole(name, x, 0, 2**62) for name, x in zip(("epoch_start", "position"), place, strict=True)]
            # negative where a later epoch than the first was joined early on a stream
            began = None if state.get("start") is None else whole("start", state["start"], -(2**62), 2**62)
        except InvalidSpec as e:
            raise InvalidSpec(f"not a state of a PrepClient, by its numbers: {state!r}", "state_dict") from e
        try:
            source = state.get("source")
            listing = None if source is None else Listing.from_state(source)
        except (LookupError, TypeError, ValueError) as e:
            raise InvalidSpec(f"not a state of a PrepClient, by its source: {state!r}", "state_dict") from e
        if state["spec"] != self.spec.digest:
            raise InvalidSpec(
                f"the state was taken from another stream of rows (spec {state['spec']}, this is {self.spec.digest}): "
                "source, shuffle, seed, ops and views must be the same; ranks and workers may differ, and batch_size "
                "and num_shards too unless whole batches are shuffled",
                "state_dict",
            )
        self._detach()
        self._start = Start(epoch, place[1], place[0])
        self._listing = listing
        self._allow_changed = bool(allow_changed)
        self._began = began
        self._may_continue, self._ends_at = place[1] is not None, -1
        self._iterators += 1

    @in_turn
    def close(self) -> None:
        """Leaves the daemon and frees the ring. Tensors that were handed out fresh stay valid. Idempotent.

        The place is kept for `state_dict`; iterating again attaches again, and begins the next epoch after one
        that was left in the middle.
        """
        if self._session is not None:
            self._keep_place()
        self._detach()
        if self._device_stage is not None:
            self._device_stage.close()
            self._device_stage = None
        self._iterators += 1
        self._private = None  # it ends with the last client that uses it
        self._was_served = False

    def __enter__(self) -> PrepClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------------

    @property
    def _continues(self) -> bool:
        """Whether iterating goes on from this place, in the middle of an epoch or not."""
        # A job that lost batches (lag="skip") stands in the next epoch when its iterator ends.
        return self._may_continue or self._totals.batches == self._ends_at

    @property
    def _totals(self) -> Totals:
        return self._session.handed.totals if self._session is not None else self._past

    def _class_names(self) -> list[str]:
        """For `Dataset.classes`: read once for each listing."""
        self._attached()
        assert self._listing is not None
        content = self._listing.content
        if self._classes is None or self._classes[0] != content:
            self._classes = content, class_names(self.spec.source, self.num_classes, content)
        return self._classes[1]

    def _check_process(self) -> None:
        """Called before anything that a fork breaks: mappings are not inherited, nor are the threads of a library.

        Raises:
            ForkedClient: This is not the process that attached.
        """
        if self._session is not None and os.getpid() != self._pid:
            raise ForkedClient(
                f"this PrepClient attached in process {self._pid} and is used in its fork {os.getpid()}, which has "
                "none of its memory. Make a PrepClient in the process that uses it, or `close` this one here first; "
                "a DataLoader around it takes num_workers=0"
            )

    def _check_copies(self) -> None:
        """Called before it attaches in a process in which it was not made, or was not attached before.

        Raises:
            ForkedClient: Others like it will do the same there.
        """
        worker = get_worker_info()
        if os.getpid() != self._pid and worker is not None and worker.num_workers > 1:
            raise ForkedClient(
                f"each of the {worker.num_workers} workers of this DataLoader has a copy of this PrepClient and would "
                "get all of its batches. The daemon has the workers: the DataLoader takes num_workers=0"
            )

    def __reduce__(self) -> Any:
        """Raises: a connection and its memory cannot be sent."""
        raise TypeError(
            "a PrepClient cannot be pickled or copied: it belongs to one process. Make it in the process that uses it; "
            "to go on elsewhere, send state_dict()"
        )

    def _next(self) -> tuple[Any, Session, Handed]:
        """The next batch, or a `BadSampleError` in its place, and what makes it handed out: ``session.handed = ...``.

        Until that is done, nothing has happened: whatever else an exception may have left half done is thrown away
        by the next step, which attaches again.
        """
        self._check_process()
        if self._session is not None and self._session.handed is self._begun:
            self._keep_place()
            self._detach()
        self._attached()  # again, after an error of the transport
        # no context manager: an exception in its end would keep this frame, and with it lent memory
        threads = stop_threads()
        step = self._step()
        resume_threads(threads)
        assert self._session is not None
        was = self._session.handed.totals
        totals = Totals(
            was.batches + 1,
            was.images + step.batch.stop - step.batch.start,
            was.bad + len(step.bad),
            was.wait_ns + step.wait_ns,
        )
        return self._dressed(step), self._session, Handed(step.line, totals)

    def _step(self) -> Step:
        while True:
            assert self._stage is not None
            assert self._session is not None
            self._begun = self._session.handed
            try:
                return self._stage.step(self._timeout_s)
            except ServerGone as gone:
                self._detach_keeping_place()
                self._come_back(gone)
            except PrepClientError:
                self._detach_keeping_place()
                raise

    def _come_back(self, gone: PrepClientError) -> None:
        """Waits for a daemon to be there again, and goes on at the very next batch.

        Raises:
            ServerGone: None came within `reconnect_s`.
        """
        if self._reconnect_s <= 0:
            raise gone
        log.warning("%s. Waiting up to %g s (reconnect_s) for it to come back", str(gone), self._reconnect_s)
        began_s = time.monotonic()
        pause_s = _RETRY_FIRST_S
        while True:
            try:
                self._attach()
            except (NoServer, ServerGone) as e:
                left_s = began_s + self._reconnect_s - time.monotonic()
                if left_s <= 0:
                    raise ServerGone(f"{gone}; none came back within reconnect_s = {self._reconnect_s:g}") from e
                time.sleep(min(pause_s, left_s))
                pause_s = min(_RETRY_MOST_S, 1.5 * pause_s)
            else:
                log.warning("the daemon is back after %.1f s; going on where it stopped", time.monotonic() - began_s)
                return

    def _dressed(self, step: Step) -> Any:
        """The batch in the form that the user asked for."""
        if step.bad and self._on_error == "raise":
            return BadSampleError(step.bad[0].index, step.bad[0].reason)
        fields = step.fields
        if self._on_error == "mask" and VALID not in fields:
            fields[VALID] = valid_rows(step.batch, step.bad)
        if self._names is None:
            return fields
        return tuple(fields[name] for name in self._names)

    def _attached(self) -> Session:
        self._check_process()
        if self._session is None:
            self._come()
        assert self._session is not None
        return self._session

    @in_turn
    def _come(self) -> None:
        try:
            self._attach()
        except (NoServer, ServerGone) as e:
            # a job that had a daemon before: it is being restarted, maybe just between two epochs
            if not self._was_served:
                raise
            self._come_back(e)

    def _restart(self, start: Start) -> Session:
        self._detach()
        self._start = start
        self._iterators += 1  # who iterates would get the new place's batches in the old epoch
        return self._attached()

    def _attach(self) -> None:
        self._check_copies()
        start = replace(self._start, first=self._first_position())
        self._pid = os.getpid()
        self._feed = self._make_feed(start)
        parts: list[Any] = [self._feed]
        self._leave = weakref.finalize(self, _leave, os.getpid(), parts)
        try:
            self._check_listing(start, self._feed.listing)
            epoch_start = self._feed.epoch_start
            self._note_start(start, epoch_start)
            session = Session(
                self._feed.listing.samples, start.epoch, epoch_start, self._feed.position, self.spec.shape,
                start.rounds, self._past,
            )  # fmt: skip
            self._session = session
            self._stage = self._make_stage(session, self._feed)
            parts.append(self._stage)
            self._feed.attach(session)
            self._was_served = not self._inline
        except _Changed:
            self._detach()
            self._start, self._listing, self._may_continue = Start(start.epoch), None, False
            self._attach()
        except ValueError as e:
            self._detach()
            raise InvalidSpec(str(e)) from e
        except BaseException:
            self._detach()
            raise

    def _first_position(self) -> int | None:
        if self._first == "first" or (self._first is None and torch.are_deterministic_algorithms_enabled()):
            return 0
        return self._first if isinstance(self._first, int) else None

    def _note_start(self, start: Start, epoch_start: int) -> None:
        assert self._feed is not None
        began = epoch_start - start.epoch * self.spec.shape.shard.positions(self._feed.listing.samples)
        if began != self._began:
            log.info("epoch %d begins at position %d: start=%d asks for that again", start.epoch, epoch_start, began)
        self._began = began

    def _check_listing(self, start: Start, now: Listing) -> None:
        """Positions count the samples of one listing and mean nothing in another.

        Raises:
            SourceChanged: `start` is a position in another one.
        """
        was = self._listing
        if was is not None and not was.agrees(now):
            numbers = f"{was.samples} samples (listing {was.content[:12]}), now {now.samples} ({now.content[:12]})"
            if start.position is not None:
                if self._allow_changed:
                    raise _Changed
                what = "the code of a plug-in" if was.code != now.code else self.spec.source.place
                raise SourceChanged(
                    f"{what} has changed since epoch {start.epoch} of this job was begun, or is another: it had "
                    f"{numbers}. To go on at the same place, restore the dataset; to begin an epoch "
                    f"with what is there now, call set_epoch({start.epoch + 1}), or "
                    "load_state_dict(state, allow_changed=True) "
                    f"to begin epoch {start.epoch} anew with it"
                )
            log.warning("%s has changed: it had %s; epoch %d takes those", self.spec.source.place, numbers, start.epoch)
        self._listing = now
        self._allow_changed = False

    def _make_feed(self, start: Start) -> Feed:
        check_descriptors()
        with contextlib.closing(ScanProgress(self.spec.source.place)) as progress:
            if self._inline:
                return InlineFeed(self.spec, start, progress, self._plugins)
            runtime_dir = find_runtime_dir(self._runtime_dir)
            if self._workers is not None and (self._private is not None or not _listens(runtime_dir)):
                self._private = private_daemon(self._workers, self._plugins)
                runtime_dir = self._private.runtime_dir
            elif self._plugins:
                raise InvalidSpec(f"{_shared_plugins(self._plugins)}: one runs in {runtime_dir}", "plugins")
            return ServedFeed(
                runtime_dir, self.spec, start, prefetch=self._prefetch, timeout_s=self._timeout_s,
                join_wait_s=self._join_wait_s, lag=self._lag, on_scanning=progress,
            )  # fmt: skip

    def _make_stage(self, session: Session, feed: Feed) -> Stage:
        # split rounds at the end of an epoch can be larger than no batch, never than batch_size
        max_batch = self.spec.shape.batch_size
        if self._device.type == "cpu":
            return HostStage(session, feed, self._looks, self._finish, max_batch, zero_copy=self._zero_copy)
        if self._device_stage is None or not self._device_stage.reset():
            small = {field.name: getattr(torch, field.dtype) for field in self.spec.pipeline.fields if not field.shape}
            if self._on_error == "mask":
                small[VALID] = torch.bool
            self._device_stage = DeviceStage(
                self._device, self._looks, max_batch, finish=self._finish, small=small, zero_copy=self._zero_copy,
                engine=self._engine,
            )  # fmt: skip
        return CudaStage(session, feed, self._device_stage)

    def _keep_place(self) -> None:
        """The next use begins at the first batch that was not handed out."""
        session = self._session
        if session is not None:
            epoch_start, position, rounds = session.place
            self._start = Start(session.epoch, position, epoch_start, rounds, session.position)

    def _detach_keeping_place(self) -> None:
        """After an error of the transport: the next use attaches again at the same sample."""
        self._keep_place()
        self._may_continue = self._may_continue or self._session is not None
        self._detach()

    def _detach(self) -> None:
        self._past = self._totals
        self._session = self._stage = self._feed = None
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


class _Changed(Exception):
    """The dataset is not that of the checkpoint, and the user allows that."""


def _leave(pid: int, parts: list[Any]) -> None:
    """Closes a feed, and before it its stage, if it came to that. A forked child touches no device of its parent's."""
    with contextlib.ExitStack() as closing:
        for part in parts if os.getpid() == pid else parts[:1]:
            closing.callback(part.close)


class _Epoch:
    """Iterates over what is left of one epoch, which ends when its client has handed out `ends_at` batches."""

    def __init__(self, client: PrepClient, number: int, ends_at: int) -> None:
        self._client = client
        self._number = number
        self._ends_at = ends_at
        self._ended = False

    def __iter__(self) -> _Epoch:
        return self

    def __len__(self) -> int:
        return 0 if self._ended else max(0, self._ends_at - self._client._totals.batches)

    def __next__(self) -> Any:
        turn = Turn()
        try:
            self._client._take(turn)
            if self._ended:
                raise StopIteration
            if self._client._iterators != self._number:
                raise RuntimeError(
                    "this iterator is of an earlier epoch: its PrepClient was iterated or moved since. Each loop that "
                    "runs at the same time needs a PrepClient of its own; they share the daemon's work"
                )
            if len(self) == 0:
                self._ended = True  # for good, whatever the client hands out to others
                raise StopIteration
            batch, session, handed = self._client._next()
            # ORDER: nothing may come between the statements of a line, nor do they call anything: that is where
            # signal handlers run.
            if isinstance(batch, BadSampleError):  # consumed: whoever catches this and goes on gets the batch after it
                try:
                    session.handed = handed; raise batch  # noqa: E702  # fmt: skip
                finally:
                    del batch  # its traceback holds this frame
            session.handed = handed; turn.is_over = True; return batch  # noqa: E702  # fmt: skip
        except BaseException:
            turn.is_over = True; raise  # noqa: E702  # fmt: skip


def _checked_start(start: object) -> Literal["any", "first"] | int | None:
    if start is None or start == "any" or start == "first":
        return start
    try:
        return integer("start", start, -(2**62), 2**62)
    except SpecError as e:
        allowed = "'any', 'first', or a position, as stats()['start'] has it"
        raise InvalidSpec(f"start = {start!r}: {allowed}", "start") from e


def _checked_plugins(plugins: object, is_own: bool) -> tuple[str, ...]:
    names = (plugins,) if isinstance(plugins, str) else plugins
    if not isinstance(names, Sequence) or not all(isinstance(name, str) and name for name in names):
        raise InvalidSpec(f"plugins = {plugins!r}: a name, or several, such as 'my_project.data'", "plugins")
    if names and not is_own:
        raise InvalidSpec(f"{_shared_plugins(names)}. Or pass workers=N or inline=True, too", "plugins")
    return tuple(names)


def _shared_plugins(names: Sequence[str]) -> str:
    return (
        f"plugins = {list(names)}: the configuration of a shared daemon names its plug-ins (load under [plugins], or "
        "`prepserver start --plugin NAME`), not its clients"
    )


def _checked_path(field: str, path: str | os.PathLike[str] | None) -> str | None:
    try:
        return None if path is None else os.fspath(path)
    except TypeError:
        raise InvalidSpec(f"{field} = {path!r}: a path, or None", field) from None


def _listens(runtime_dir: Path) -> bool:
    try:
        connect(runtime_dir).close()
    except NoServer:
        return False
    return True


def _checked_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cpu")
    try:
        made = torch.device(device)
    except (RuntimeError, TypeError) as e:
        raise InvalidSpec(f"device = {device!r}: {e}", "device") from e
    return check_device(made)
