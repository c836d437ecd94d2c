"""`PrepClient`: in the DataLoader's place.

It joins the parts: the checked spec, a feed (a daemon's ring or this process), a session over it, and a stage
that turns rows into tensors. Each is replaced as a whole when the client starts anew.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import torch

from prepclient.device import DeviceStage, cuda_device
from prepclient.errors import BadSampleError, InvalidSpec, NoServer, PrepClientError, ServerGone
from prepclient.feed import Feed, ServedFeed, Start
from prepclient.finish import Finish, Finisher, RowLook
from prepclient.inline import InlineFeed
from prepclient.places import find_runtime_dir
from prepclient.private import PrivateDaemon
from prepclient.progress import ScanProgress
from prepclient.session import Session
from prepclient.spec import Fields, OnError, check_choice, check_fields, make_spec
from prepclient.stages import CudaStage, HostStage, Stage, Step
from prepclient.transport import connect
from prepserver.pipeline.batches import Batching
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.ops import Op
from prepserver.pipeline.sources import SourceSpec
from prepserver.protocol.messages import Lag

log = logging.getLogger("prepclient")

_STATE_VERSION = 1
_RETRY_FIRST_S = 0.02  # a daemon that is started again listens within a second or two
_RETRY_MOST_S = 0.2  # asking costs one connect


class PrepClient:
    """Batches of a dataset, made by a prepserver daemon and shared with every job that asks for the same.

    Iterating gives one epoch, like a DataLoader::

        train = PrepClient(ImageFolder("/data/train"), [RandomResizedCrop(224), RandomHorizontalFlip()],
                           batch_size=256, shuffle=True, seed=0, device="cuda")
        for epoch in range(90):
            for images, labels in train:
                ...

    Nothing happens before the first use (`iter`, `len`, `samples`). Leaving an epoch early (``break``) and
    iterating again begins the next epoch. Use it from one thread.

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
        timeout_s: Longest wait for a batch, or for the daemon's answer. After 30 s of waiting a log line
            says for what.
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
        fields: ``"tuple"`` for ``(images, labels)``; ``"dict"`` for keys ``image``, ``label``, ``index`` (the
            sample's place in the source); or names in the order in which a tuple of them is wanted.
        zero_copy: Lend memory instead of handing out fresh tensors: read-only views of the ring on the CPU
            (a write is a segmentation fault), device buffers on a GPU. Valid until the next step. Ignored where
            `normalize`, `dtype` or `memory_format` make new tensors anyway.
        normalize: ``(mean, std)`` per channel, computed where the batch ends up.
        dtype: ``torch.float16``, ``torch.bfloat16`` or ``torch.float32``; uint8 rows are scaled by 1/255.
        memory_format: ``torch.channels_last`` (what uint8 rows are anyway) or ``torch.contiguous_format``.
        inline: Make the rows in this process: no daemon, the same bytes.
        workers: Where no daemon runs, start a private one with so many workers, for the life of this process.
        join_wait_s: How long to rather wait for a running stream than have an own one for ever. The first batches
            come at once all the same; the wait comes after them. 0 never waits; more than a third of `timeout_s`
            counts as that.
        reconnect_s: How long to wait for a daemon that went away (a restart) before `ServerGone` is raised; the
            batches go on with the very rows that they would have had. 0 raises at once.
        lag: What happens when this job is slower than those that it shares with: ``"wait"`` (they wait for it),
            ``"detach"`` (it goes on with a stream of its own, the same bytes), ``"skip"`` (it loses batches;
            `stats` counts them), ``"auto"`` (detach while workers are idle, else wait).

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
        join_wait_s: float = 30.0,
        reconnect_s: float = 300.0,
        lag: Lag = "auto",
    ) -> None:
        check_choice("lag", lag, ("auto", "wait", "detach", "skip"))
        check_choice("on_error", on_error, ("raise", "skip", "mask"))
        self._names = check_fields(fields, on_error)
        if prefetch is not None and not 1 <= prefetch < 2**31:
            raise InvalidSpec(f"prefetch = {prefetch}: rows to have ready ahead, at least 1", "prefetch")
        if workers is not None and not 1 <= workers <= 1024:
            raise InvalidSpec(f"workers = {workers}: from 1 to 1024 processes", "workers")
        if not 0 < timeout_s < 1e9:
            raise InvalidSpec(f"timeout_s = {timeout_s}: more than 0 seconds", "timeout_s")
        if not 0 <= join_wait_s < 1e9:
            raise InvalidSpec(f"join_wait_s = {join_wait_s}: seconds, at least 0", "join_wait_s")
        if not 0 <= reconnect_s < 1e9:
            raise InvalidSpec(f"reconnect_s = {reconnect_s}: seconds, at least 0", "reconnect_s")
        self.spec = make_spec(
            source, ops, batch_size=batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last, rank=rank,
            world_size=world_size, job=job, num_shards=num_shards, shard_index=shard_index, views=views, order=order,
        )  # fmt: skip
        try:
            self._finish = Finish(normalize, dtype, memory_format)
            self._look = RowLook.of(self.spec.pipeline)
            Finisher(self._finish, self._look, torch.device("cpu"))  # says now what would not fit later
        except SpecError as e:
            raise InvalidSpec(str(e), e.field) from e
        if lag == "skip" and self.spec.shape.world_size * self.spec.shape.shard.count > 1:
            raise InvalidSpec("lag = 'skip' would give ranks different numbers of batches: use 'detach'", "lag")
        self._device = _checked_device(device)
        self._prefetch = prefetch or 0
        self._timeout_s = float(timeout_s)
        self._runtime_dir = runtime_dir
        self._on_error = on_error
        self._zero_copy = zero_copy
        self._inline = inline
        self._workers = workers
        self._join_wait_s = float(join_wait_s)
        self._reconnect_s = float(reconnect_s)
        self._lag: Lag = lag
        self._private: PrivateDaemon | None = None
        self._was_served = False
        self._start = Start()
        self._feed: Feed | None = None
        self._session: Session | None = None
        self._stage: Stage | None = None
        self._may_continue = False  # the epoch was entered by load_state_dict: iterating goes on in it
        self._iterators = 0
        self._wait_ns = 0
        self._batches = 0
        self._images = 0
        self._bad = 0

    # -- what a DataLoader has ------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """One epoch, from its beginning (or, after `load_state_dict`, what is left of it)."""
        session = self._attached()
        if not session.at_epoch_start and not self._may_continue:
            # Left in the middle: the next epoch begins, wherever on the stream one may.
            session = self._restart(Start(session.epoch + 1))
        self._may_continue = False
        self._iterators += 1
        return _Epoch(self, self._iterators, session.batches_left)

    def __len__(self) -> int:
        """Batches of a whole epoch, of this rank; of the one that comes or runs, where they differ (see `order`)."""
        return self._attached().batches_per_epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is epoch number `epoch` (from 0), as DistributedSampler's.

        Counting up by one, as a loop does, changes nothing. Any other epoch starts the stream anew there.

        Raises:
            InvalidSpec: Not a whole number, or negative.
        """
        if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch < 2**40:
            raise InvalidSpec(f"epoch = {epoch!r}: a whole number, at least 0", "epoch")
        session = self._session
        if session is None:
            # a loaded state stands in its epoch: naming that one keeps its place
            if not (self._may_continue and self._start.epoch == epoch):
                self._start = Start(epoch)
                self._may_continue = False
        elif session.epoch != epoch or not (session.at_epoch_start or self._may_continue):
            self._restart(Start(epoch))

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
        """Where this job's time goes: batches, images, replaced samples, and seconds spent waiting in `next`.

        ``sharing_factor`` is how many rows jobs have got for each that the workers made for this job's stream: 3.0
        where three share it. The daemon is asked for it, in a few milliseconds; it is None while that is not there.
        """
        return {
            "batches": self._batches,
            "images": self._images,
            "bad_samples": self._bad,
            "lost_batches": self._session.lost_batches if self._session is not None else 0,
            "wait_s": self._wait_ns / 1e9,
            "epoch": self.epoch,
            "sharing_factor": self._feed.sharing_factor() if self._feed is not None else None,
        }

    def state_dict(self) -> dict[str, Any]:
        """Where the job stands: a few integers, for a checkpoint.

        Valid for another batch size, number of workers, ranks, shards or machine, as long as source, order, seed and
        ops are the same. It is the same in all ranks of all shards, and says how many samples of the pass they have
        taken together; a number of shards that does not divide that is refused when the next batch is asked for. Where
        whole batches are shuffled (`order`), batch size and number of shards must be the same, too.
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
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where `state_dict` was taken: at the very next sample.

        Raises:
            InvalidSpec: Not such a state, or one of another source, order, seed or pipeline.
        """
        names = {"version", "spec", "epoch", "epoch_start", "position"}
        if not isinstance(state, dict) or set(state) != names or state["version"] != _STATE_VERSION:
            raise InvalidSpec(f"not a state of a PrepClient (version {_STATE_VERSION}): {state!r}", "state_dict")
        numbers = [state["epoch"], state["epoch_start"], state["position"]]
        if numbers[1:] == [None, None]:
            numbers = numbers[:1]  # taken before anything was read
        if any(not isinstance(x, int) or isinstance(x, bool) or not 0 <= x <= 2**62 for x in numbers):
            raise InvalidSpec(f"not a state of a PrepClient, by its numbers: {state!r}", "state_dict")
        if state["spec"] != self.spec.digest:
            raise InvalidSpec(
                f"the state was taken from another stream of rows (spec {state['spec']}, this is {self.spec.digest}): "
                "source, shuffle, seed, ops and views must be the same; ranks and workers may differ, and batch_size "
                "and num_shards too unless whole batches are shuffled",
                "state_dict",
            )
        self._detach()
        self._start = Start(state["epoch"], state["position"], state["epoch_start"])
        self._may_continue = state["position"] is not None
        self._iterators += 1

    def close(self) -> None:
        """Leaves the daemon and frees the ring. Tensors that were handed out fresh stay valid. Idempotent.

        The place is kept for `state_dict`; iterating again attaches again, and begins the next epoch after one
        that was left in the middle.
        """
        if self._session is not None:
            continues = self._may_continue
            self._detach_keeping_place()
            self._may_continue = continues
        self._detach()
        self._iterators += 1
        if self._private is not None:
            self._private.close()
            self._private = None
        self._was_served = False

    def __enter__(self) -> PrepClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------------

    def _next(self) -> Any:
        self._attached()  # again, after an error of the transport
        began_ns = time.monotonic_ns()
        step = self._step()
        self._wait_ns += time.monotonic_ns() - began_ns
        self._batches += 1
        self._images += step.batch.stop - step.batch.start
        return self._dressed(step)

    def _epoch_ended(self) -> None:
        # A job that lost batches (lag="skip") stands in the next epoch by now: it goes on there.
        self._may_continue = True

    def _step(self) -> Step:
        while True:
            assert self._stage is not None
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
        log.warning("%s. Waiting up to %g s (reconnect_s) for it to come back", gone, self._reconnect_s)
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
        if step.bad:
            self._bad += len(step.bad)
            if self._on_error == "raise":
                raise BadSampleError(step.bad[0].index, step.bad[0].reason)
        fields = step.fields
        if self._on_error == "mask":
            fields["valid"] = self._valid(step)
        if self._names is None:
            return fields
        return tuple(fields[name] for name in self._names)

    def _valid(self, step: Step) -> torch.Tensor:
        valid = torch.ones(step.batch.stop - step.batch.start, dtype=torch.bool)
        for bad in step.bad:
            valid[bad.position - step.batch.start] = False
        return valid.to(step.fields["label"].device)

    def _attached(self) -> Session:
        if self._session is None:
            try:
                self._attach()
            except (NoServer, ServerGone) as e:
                # a job that had a daemon before: it is being restarted, maybe just between two epochs
                if not self._was_served:
                    raise
                self._come_back(e)
        assert self._session is not None
        return self._session

    def _restart(self, start: Start) -> Session:
        self._detach()
        self._start = start
        self._iterators += 1  # who iterates would get the new place's batches in the old epoch
        return self._attached()

    def _attach(self) -> None:
        start = self._start
        self._feed = self._make_feed(start)
        try:
            epoch_start = self._feed.epoch_start
            session = Session(
                self._feed.samples, start.epoch, epoch_start, self._feed.position, self.spec.shape, start.rounds
            )
            self._session = session
            self._stage = self._make_stage(session, self._feed)
            self._feed.attach(session)
            self._was_served = not self._inline
        except ValueError as e:
            self._detach()
            raise InvalidSpec(str(e)) from e
        except BaseException:
            self._detach()
            raise

    def _make_feed(self, start: Start) -> Feed:
        with contextlib.closing(ScanProgress(_name_of(self.spec.source))) as progress:
            if self._inline:
                return InlineFeed(self.spec, start, progress)
            runtime_dir = find_runtime_dir(self._runtime_dir)
            if self._private is not None:
                runtime_dir = self._private.runtime_dir
            elif self._workers is not None:
                try:
                    connect(runtime_dir).close()
                except NoServer:
                    self._private = PrivateDaemon(self._workers)
                    runtime_dir = self._private.runtime_dir
            return ServedFeed(
                runtime_dir, self.spec, start, prefetch=self._prefetch, timeout_s=self._timeout_s,
                join_wait_s=self._join_wait_s, lag=self._lag, on_scanning=progress,
            )  # fmt: skip

    def _make_stage(self, session: Session, feed: Feed) -> Stage:
        # split rounds at the end of an epoch can be larger than no batch, never than batch_size
        max_batch = self.spec.shape.batch_size
        if self._device.type == "cpu":
            return HostStage(
                session, feed, self._release, self._look, self._finish, max_batch, zero_copy=self._zero_copy
            )
        stage = DeviceStage(
            self._device, self._look, max_batch, finish=self._finish, zero_copy=self._zero_copy
        )  # fmt: skip
        return CudaStage(session, feed, self._release, stage)

    def _release(self) -> None:
        if self._feed is not None and self._session is not None:
            self._feed.release(self._session, self._wait_ns, self._batches)

    def _detach_keeping_place(self) -> None:
        """After an error of the transport: the next use attaches again at the same sample."""
        session = self._session
        if session is not None:
            epoch_start, position, rounds = session.place
            self._start = Start(session.epoch, position, epoch_start, rounds, session.position)
            self._may_continue = True
        self._detach()

    def _detach(self) -> None:
        stage, self._stage = self._stage, None
        feed, self._feed = self._feed, None
        self._session = None
        try:
            if stage is not None:
                stage.close()
        finally:
            if feed is not None:
                feed.close()


class _Epoch:
    """Iterates over what is left of one epoch."""

    def __init__(self, client: PrepClient, number: int, batches: int) -> None:
        self._client = client
        self._number = number
        self._left = batches

    def __iter__(self) -> _Epoch:
        return self

    def __len__(self) -> int:
        return self._left

    def __next__(self) -> Any:
        if self._left == 0:
            raise StopIteration
        if self._client._iterators != self._number:
            raise RuntimeError("this iterator is of an earlier epoch: its PrepClient was iterated or moved since")
        try:
            batch = self._client._next()
        except BadSampleError:
            self._left -= 1  # the batch is consumed: who catches this and goes on gets the one after it
            raise
        self._left -= 1
        if self._left == 0:
            self._client._epoch_ended()
        return batch


def _checked_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cpu")
    try:
        made = torch.device(device)
    except (RuntimeError, TypeError) as e:
        raise InvalidSpec(f"device = {device!r}: {e}", "device") from e
    if made.type == "cpu":
        return made
    return cuda_device(made)


def _name_of(source: SourceSpec) -> str:
    wire = source.to_wire()
    return str(wire.get("root") or wire.get("path") or wire["source"])
