"""`PrepClient` replaces a DataLoader.

It checks its arguments and connects the parts: an attachment to a stream of rows, a staging that makes tensors of them,
a form that these take, and the loop that gets them. The module is long because it holds the reference of the arguments.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Never, overload
from weakref import ReferenceType, ref

import torch

from prepclient.attachment import Attachment
from prepclient.checkpoint import read_state, state_of
from prepclient.checks import LEAST_TIMEOUT_S, MOST_S, boolean, names, path
from prepclient.dataset import BatchSampler, Dataset, Sampler
from prepclient.engine import check_device
from prepclient.equivalents import refuse_loader_arguments
from prepclient.feed import Feed, Service, Start
from prepclient.finish import Finish, looks_of
from prepclient.form import Fields, Form, OnError, Output, converter
from prepclient.headspace import Headspace
from prepclient.joining import Joining
from prepclient.loop import Epoch, Loop
from prepclient.session import Session
from prepclient.sharding import Sharding
from prepclient.spec import check_cache, make_spec
from prepclient.stages import Staging
from prepclient.timeline import Timeline
from prepclient.timing import progress
from prepclient.turns import Turns, in_turn
from prepserver.pipeline.batches import Batching
from prepserver.pipeline.checks import integer, number
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.ops import Op
from prepserver.pipeline.sources import SourceSpec

log = logging.getLogger("prepclient")


class PrepClient(Turns):
    """Batches of a dataset, which a prepserver daemon makes once for all jobs that ask for the same.

    Each iteration is one epoch, as with a DataLoader:

        train = PrepClient(ImageFolder("/data/train"), [RandomResizedCrop(224), RandomHorizontalFlip()],
                           batch_size=256, shuffle=True, seed=0, device="cuda")
        for epoch in range(90):
            for images, labels in train:
                ...

    Most scripts need no more arguments. They answer eight questions, in this order:

    - What: `source`, `ops`, `views`, `fields`, `collate`, `device_ops`, `normalize`, `dtype`, `memory_format`,
      `compile`.
    - How batched: `batch_size`, `shuffle`, `order`, `seed`, `drop_last`.
    - Which part, and with whom: `sharding`, `joining`.
    - Where to: `device`, `prefetch`, `zero_copy`, `output`.
    - What to keep: `cache`.
    - Which daemon: `job`, `runtime_dir`, `workers`, `inline`, `plugins`, `connect_s`, `reconnect_s`.
    - What on failure: `on_error`, `timeout_s`.
    - What to measure: `headspace`.

    Images are ``[batch, C, H, W]`` (uint8, channels_last in memory) unless the ops say otherwise; labels int64.

    The client connects at first use (`iter`, `len`, `samples`). Leaving an epoch early (``break``) and iterating
    again begins the next epoch. Threads may take turns; two at once are an error.

    Args:
        source: The dataset, such as an `ImageFolder` or a `Tar`, with paths on the daemon's machine.
        ops: The ops that turn a sample into a row; `Decode` is implied. All rows must have one size.
        views: Images of each sample, 1 to 16, each with its own random numbers (self-supervised training). With more
            than one, a batch has a tuple of tensors for its images, one for each view: ``for (a, b), labels in
            train``. The first view has the same bytes as with `views` = 1.
        fields: Form of a batch: ``"tuple"`` for the columns in order, mostly ``(images, labels)``; ``"dict"``
            for these by name and ``index``, the sample's index in the source; or a sequence of names for a tuple of
            them.
        collate: ``"batch"`` for one tensor of each column. ``"list"``, for boxes, gives what torchvision's detection
            models take: ``for images, targets in train``, a list of images and a list of dicts, whose boxes, labels
            and keypoints have no padding. It waits for the device at each batch.
        device_ops: Ops on the batch, computed on `device`: `MixUp`, `CutMix`, `RandomChoice` of the two,
            `RandomErasing`, `ColorJitter`, `ToDtype`, `Normalize`, and `ToLayout` at the end. The same rows draw the
            same numbers in every run. Jobs that differ only in these share all rows.
        normalize: ``(mean, std)`` per channel, computed on `device`: short for ``ToDtype(torch.float32, scale=True),
            Normalize(mean, std)`` at the end of `device_ops`.
        dtype: Type of images: ``torch.float16``, ``torch.bfloat16`` or ``torch.float32``; uint8 is scaled by 1/255.
            None keeps the type that `device_ops` and `normalize` leave.
        memory_format: Memory format of images: ``torch.channels_last`` (as uint8 rows have) or
            ``torch.contiguous_format``.
        compile: Whether torch.compile fuses `device_ops`: None on a GPU only, False never, True on the CPU, too. Where
            it does not work, a log line says why and the ops run one by one.
        batch_size: Rows in a batch of this process.
        shuffle: False for the source's order; True for cyclic blocks (each sample once per epoch, and other
            jobs may join at any block); ``"full"`` for a new permutation each epoch.
        order: The order of shuffling, batching and repeating, in tf.data's words. ``"shuffle-batch-repeat"``: a batch
            belongs to one epoch, and the last one may be short. ``"shuffle-repeat-batch"``: batches cross epochs, so
            all are full; an epoch's iterator ends with the batch that holds its last sample, and `len` may vary by
            one from epoch to epoch. ``"batch-shuffle-repeat"``: whole batches of consecutive samples are shuffled
            (with `shuffle` True or ``"full"``), and the short one, if any, stays last.
        seed: Seed of order and augmentation: the same seed gives the same bytes.
        drop_last: Leave out the rows that do not fill a batch at the end of an epoch.
        sharding: The part of the samples that this process reads. None takes rank and world size from
            torch.distributed or the launcher (torchrun).
        joining: How this job shares a running stream with other jobs: where an epoch may begin, and which job waits.
            None takes the defaults.
        device: None or ``"cpu"`` for host tensors; ``"cuda[:i]"`` copies batches to the GPU ahead.
        prefetch: Rows to have ready ahead of this job; None lets the daemon fill its ring.
        zero_copy: Lend memory, valid until the next step, instead of handing out fresh tensors: read-only views of the
            ring on the CPU (a write is a segmentation fault), device buffers on a GPU. Has no effect where
            `device_ops`, `normalize`, `dtype` or `memory_format` make new tensors.
        output: ``"torch"`` for tensors, ``"numpy"`` for arrays in the same memory (read-only with `zero_copy`), or
            ``"jax"`` for jax's arrays, through dlpack, on the CPU or a GPU.
        cache: Keep samples with the daemon, for all jobs that read the same dataset: ``"encoded"`` as they are stored,
            ``"decoded"`` as uint8 images after the ops that draw no random numbers (`Resize`, `CenterCrop`, `Pad` and
            `Grayscale` at the start of `ops`), both in memory; or the path of a folder on the daemon's machine, for a
            cache on disk that survives restarts. Rows have the same bytes with and without a cache. The first epoch
            fills it, as far as the daemon's budget goes. Has no effect with `inline`.
        job: Name of the run, the same in all ranks; for `prepserver status` and the audit.
        runtime_dir: The daemon's directory; None for ``$PREPSERVER_RUNTIME_DIR`` or the usual places.
        workers: Start a private daemon with this many workers if no daemon runs; ``"auto"`` adapts the number to what
            the jobs need and the cores allow. All clients of this process that ask for one share it. It ends when the
            last of them is closed or collected, or with the process.
        inline: Make the same rows in this process, without a daemon.
        plugins: Your own code for `PluginOp` and `Plugin`: names of entry points, of modules, or ``module:object``.
            For `workers` and `inline` only; the configuration of a shared daemon names its own.
        connect_s: Longest wait at first use for a daemon that is starting. 0 raises `NoServer` at once.
        reconnect_s: Longest wait for a daemon that went away (a restart) before `ServerGone`. The next batch has the
            same rows as without the restart. 0 raises at once.
        on_error: What to do about a sample that cannot be made: ``"raise"`` raises `BadSampleError`; ``"skip"``
            silently takes its replacement (another sample, chosen by the index); ``"mask"`` takes it and adds a field
            ``valid`` (bool, False in such rows).
        timeout_s: Longest wait for a batch, for the daemon's answer, or for a place with a busy daemon. After 30 s
            of waiting for a batch, a log line names the reason.
        headspace: Measure in the first epoch what an infinitely fast loader would give: after ten steps and as many as
            this, the loop gets batches again that it had, for so many steps, and then the stream goes on. That epoch
            has so many more batches, in all ranks. A log line and `stats` say the result. The model trains on these
            batches, too, so this is for a run to measure with.

    Raises:
        InvalidSpec: An argument is invalid; raised before anything is sent.
    """

    def __init__(
        self,
        source: SourceSpec,
        ops: Sequence[Op],
        *,
        # what
        views: int = 1,
        fields: Fields = "tuple",
        collate: Literal["batch", "list"] = "batch",
        device_ops: Sequence[Op] = (),
        normalize: tuple[Sequence[float], Sequence[float]] | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        compile: bool | None = None,  # torch's word
        # how batched
        batch_size: int = 1,
        shuffle: bool | str = False,
        order: Batching = "shuffle-batch-repeat",
        seed: int = 0,
        drop_last: bool = False,
        # which part, and with whom
        sharding: Sharding | None = None,
        joining: Joining | None = None,
        # where to
        device: str | torch.device | None = None,
        prefetch: int | None = None,
        zero_copy: bool = False,
        output: Output = "torch",
        # what to keep
        cache: str | os.PathLike[str] | None = None,
        # which daemon
        job: str | None = None,
        runtime_dir: str | os.PathLike[str] | None = None,
        workers: int | Literal["auto"] | None = None,
        inline: bool = False,
        plugins: str | Sequence[str] = (),
        connect_s: float = 10.0,
        reconnect_s: float = 300.0,
        # what on failure
        on_error: OnError = "raise",
        timeout_s: float = 600.0,
        # what to measure
        headspace: int = 0,
        **loader_arguments: Never,
    ) -> None:
        super().__init__()
        refuse_loader_arguments(loader_arguments)
        if not isinstance(joining, Joining | None):
            raise SpecError("joining", joining, "Joining(...), or None for the defaults")
        self.spec = make_spec(
            source, ops, batch_size=batch_size, shuffle=shuffle, order=order, seed=seed, drop_last=drop_last,
            views=views, sharding=sharding, job=job,
        )  # fmt: skip
        form = Form(self.spec.pipeline, fields, collate, on_error)
        finish = Finish(
            normalize, dtype, memory_format, device_ops, None if compile is None else boolean("compile", compile)
        )
        self._device_ops = finish.digest
        service = Service(
            runtime_dir=None if runtime_dir is None else path("runtime_dir", runtime_dir),
            workers=workers if workers in (None, "auto") else integer("workers", workers, 1, 1024),
            inline=boolean("inline", inline),
            plugins=names("plugins", plugins, "my_project.data"),
            cache=check_cache(cache, self.spec.pipeline),
            joining=joining or Joining(),
            prefetch=0 if prefetch is None else integer("prefetch", prefetch, 1, 2**31 - 1),
            connect_s=number("connect_s", connect_s, 0.0, MOST_S),
            reconnect_s=number("reconnect_s", reconnect_s, 0.0, MOST_S),
            timeout_s=number("timeout_s", timeout_s, LEAST_TIMEOUT_S, MOST_S),
        )
        self._staging = Staging(
            self.spec, check_device(device), looks_of(self.spec.pipeline, finish), finish,
            zero_copy=boolean("zero_copy", zero_copy), has_valid=form.has_valid,
        )  # fmt: skip
        self._attachment = Attachment(self.spec, service, self._staging)
        self._loop = Loop(
            self._attachment, form, converter(output, self._staging.device, self._staging.dtypes, zero_copy=zero_copy),
            Headspace(integer("headspace", headspace, 0, 2**31 - 1), self._staging.device),
        )  # fmt: skip
        self._iterators = 0  # how many there were: only the latest one works
        self._latest: ReferenceType[Epoch] | None = None  # weak: a loop that drops it ends it

    # -- as of a DataLoader -----------------------------------------------------------------------------

    @in_turn
    def __iter__(self) -> Iterator[Any]:
        """One epoch; after `load_state_dict`, the rest of one."""
        session = self._attached()
        if not session.line.at_epoch_start and not self._attachment.goes_on:
            # The loop left this epoch early: begin the next one wherever the order allows.
            session = self._restart(Start(session.epoch + 1))
        self._iterators += 1
        latest = Epoch(self, self._iterators, self._loop.begin_epoch(session))
        self._latest = ref(latest)
        return latest

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch: in the current or next one, if they differ (see `order`)."""
        return self._attached().line.batches_per_epoch + self._loop.headspace.extra

    @in_turn
    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` (from 0) the next epoch, as DistributedSampler's `set_epoch` does.

        The next epoch in turn changes nothing; any other starts a new stream. An iterator from which nothing was taken
        goes there too: Lightning calls `iter` first.

        Raises:
            InvalidSpec: Not a whole number, or negative.
        """
        epoch = integer("epoch", epoch, 0, 2**40 - 1)
        at = self._attachment
        if at.session is None:
            # Setting the epoch of a loaded state keeps the place in it.
            if not (at.goes_on and at.start.epoch == epoch):
                at.start, at.goes_on = Start(epoch), False
        elif at.session.epoch != epoch or not (at.session.line.at_epoch_start or at.goes_on):
            latest = self._latest() if self._latest is not None else None
            unread = latest if latest is not None and latest.is_unread else None
            session = self._restart(Start(epoch))
            if unread is not None:
                unread.begin_at(self._iterators, self._loop.begin_epoch(session))

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
        """0, because the workers are the daemon's."""
        return 0

    @property
    def prefetch_factor(self) -> None:
        """None, as of a DataLoader without workers."""

    @property
    def dataset(self) -> Dataset:
        """The source: its length, and its classes if they have names."""
        return Dataset(self)

    @property
    def sampler(self) -> Sampler:
        """For loops that call ``loader.sampler.set_epoch``."""
        return Sampler(self)

    @property
    def batch_sampler(self) -> BatchSampler:
        """As `sampler`, by batches; Lightning and accelerate read it."""
        return BatchSampler(self)

    def __repr__(self) -> str:
        spec, shape = self.spec, self.spec.shape
        return (
            f"PrepClient({spec.source}, {list(spec.pipeline.ops)}, batch_size={shape.batch_size}, "
            f"order={spec.shuffle!r}, seed={spec.seed}, drop_last={shape.drop_last}, rank={shape.rank}, "
            f"world_size={shape.world_size}, device='{self._staging.device}', job={spec.job!r}, epoch={self.epoch})"
        )

    # -- beyond a DataLoader ----------------------------------------------------------------------------

    @property
    def samples(self) -> int:
        """Samples of the source: rows of an epoch, over all ranks of all shards."""
        return self._attached().samples

    @property
    def num_classes(self) -> int:
        """Distinct labels of the source; 0 if it has none."""
        return self._feed().num_classes

    @property
    def plugins(self) -> tuple[str, ...]:
        """Names of the plug-ins of this process or its private daemon."""
        return self._attachment.service.plugins

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next batch belongs to."""
        return self._attachment.epoch

    @overload
    def stats(self) -> dict[str, Any]: ...

    @overload
    def stats(self, *, table: Literal[True]) -> str: ...

    def stats(self, *, table: bool = False) -> dict[str, Any] | str:
        """Counts of this job: batches, images, replaced samples, and the seconds that its loop spent on what.

        ``start`` is where epoch 0 began or would have begun; another run with the same seed and
        ``Joining(start=...)`` has the same order. It is None before the first use. ``sharing_factor`` is how many rows
        jobs have received per row made for this job's stream: 3.0 if three jobs share it. ``verdict`` is what limited
        the job in the last ten seconds, why, and what to do. The client asks the daemon for these two, in a few
        milliseconds; they are None while it has no daemon. ``headspace`` is what that argument has measured: images/s
        with an infinitely fast loader, images/s with this one, and the gain; None before.

        Args:
            table: Return a text instead: loading, copying, computing and the rest, per step and in per cent, and the
                verdict. Print it at the end of a run, before `close`.
        """
        return self._loop.table() if table else self._loop.stats()

    def progress(self, epochs: int = 1) -> Iterator[Any]:
        """All batches of the next `epochs` epochs, with a bar on stderr.

        It shows epoch, batches, time left, images/s, and how much of its time the loop waits for data:

            for images, labels in train.progress(90):
                ...

        Raises:
            InvalidSpec: `epochs` is not a whole number, or below 1.
        """
        return progress(self, integer("epochs", epochs, 1, 2**31))

    @in_turn
    def timeline(self, path: str | os.PathLike[str], steps: int = 200) -> None:
        """Records the next `steps` steps, and then writes them as a trace for Perfetto (ui.perfetto.dev).

        It shows the training loop (loading, copying, computing), the chunks of all workers, and arrows from each chunk
        over the announcement of its rows to the copy of the batch that has them, and to the step that computes with it.
        The last step takes some milliseconds longer; `close` writes what there is until then.

        Args:
            path: The file to write, such as ``run.pftrace``.
            steps: How many, at least 1. The daemon remembers the last 4096 chunks.

        Raises:
            InvalidSpec: `path` is no path, or `steps` is not a whole number or is below 1.
        """
        on_cpu = self._staging.device.type == "cpu"
        self._loop.begin_timeline(Timeline(path, steps, self.spec.job, on_cpu=on_cpu))

    def state_dict(self) -> dict[str, Any]:
        """The job's position for a checkpoint: a few numbers.

        It is valid with another batch size, number of workers, ranks or shards, and on another machine, as long as the
        source (its labels and relative paths), order, seed and ops are the same. It is the same in all ranks of all
        shards, and says how many samples of the pass they have taken together; the next batch refuses a number of
        shards that does not divide that. If whole batches are shuffled (`order`), batch size and number of shards must
        be the same, too.
        """
        at = self._attachment
        return state_of(self.spec.digest, at.place, at.began, at.listing, self._device_ops)

    @in_turn
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on at the sample after `state_dict`.

        If the dataset has other samples than then, the next use raises `SourceChanged`; without this call,
        ``set_epoch(state["epoch"])`` begins the state's epoch with the new samples. Other `device_ops` than then change
        no row, so they are only logged.

        Args:
            state: From `state_dict`.

        Raises:
            InvalidSpec: Not a state, or one of another source, order, seed or pipeline.
        """
        at, (place, began, listing, device_ops) = self._attachment, read_state(state, self.spec.digest)
        if device_ops != self._device_ops:
            log.warning(
                "the state was taken with other device_ops: this job goes on with the same rows, and its own ops"
            )
        at.detach()
        at.start, at.began, at.listing = place, began, listing
        at.goes_on = place.position is not None
        self._iterators += 1

    @in_turn
    def close(self) -> None:
        """Leaves the daemon and frees the ring; fresh tensors stay valid. Idempotent.

        `state_dict` still works. Iterating again attaches again, and begins the next epoch if one was left early.
        """
        self._loop.end_timeline()
        self._loop.headspace.end_epoch()
        self._attachment.close()
        self._iterators += 1

    def __enter__(self) -> PrepClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        """Raises: a connection and its memory cannot be sent."""
        raise TypeError(
            "a PrepClient cannot be pickled or copied: it belongs to one process. Make it in the process that uses it; "
            "to go on elsewhere, send state_dict()"
        )

    # -- inside -----------------------------------------------------------------------------------------

    def _feed(self) -> Feed:
        self._attached()
        assert self._attachment.feed is not None
        return self._attachment.feed

    def _attached(self) -> Session:
        self._attachment.check_process()
        return self._attachment.session or self._come()

    @in_turn
    def _come(self) -> Session:
        return self._attachment.come()

    def _restart(self, start: Start) -> Session:
        self._attachment.detach()
        self._attachment.start = start
        self._iterators += 1  # ends iterators of the old epoch
        return self._attached()
