"""`PrepClient` takes the place of a DataLoader.

It checks its arguments and connects the parts: an attachment to a stream of rows, batch makers that turn rows into
tensors, the form of the batches, and the loop that hands them out. The module is long because it holds the reference of
the arguments.
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
from prepclient.batch_makers import BatchMakers
from prepclient.checkpoint import place_of, read_state, state_of
from prepclient.checks import LEAST_TIMEOUT_S, MOST_S, boolean, names, path
from prepclient.dataset import BatchSampler, Dataset, Sampler, SequentialSampler
from prepclient.engine import check_device
from prepclient.epoch import Epoch
from prepclient.equivalents import refuse_loader_arguments
from prepclient.feed import Feed, ResumePoint, Service
from prepclient.finish import Finish, looks_of
from prepclient.form import Fields, Form, OnError, Output, converter
from prepclient.headspace import Headspace
from prepclient.joining import Joining
from prepclient.loop import Loop
from prepclient.progress import with_bar
from prepclient.session import Session
from prepclient.sharding import Sharding
from prepclient.spec import Spec, check_cache, make_spec
from prepclient.timeline import Timeline
from prepclient.turns import Turns, in_turn
from prepserver.pipeline.batches import Batching
from prepserver.pipeline.checks import integer, number
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.ops import Op
from prepserver.pipeline.sources import SourceSpec

log = logging.getLogger("prepclient")


class PrepClient(Turns):
    """An iterable over batches that a prepserver daemon makes, in the place of a DataLoader.

    The daemon makes each row once for all jobs that ask for it. Each iteration is one epoch, as with a DataLoader:

        train = PrepClient(ImageFolder("/data/train"), [RandomResizedCrop(224), RandomHorizontalFlip()],
                           batch_size=256, shuffle=True, seed=0, device="cuda")
        for epoch in range(90):
            for images, labels in train:
                ...

    Most scripts need no other arguments. All of them answer one of eight questions:

    - What is in a batch: `source`, `ops`, `views`, `fields`, `collate`, `device_ops`, `normalize`, `dtype`,
      `memory_format`, `compile`.
    - How samples are ordered and batched: `batch_size`, `shuffle`, `order`, `seed`, `drop_last`.
    - Which samples this process reads, and how it shares them with other jobs: `sharding`, `joining`.
    - Where batches go: `device`, `prefetch`, `zero_copy`, `output`.
    - What the daemon keeps: `cache`.
    - Which daemon makes the rows: `job`, `runtime_dir`, `workers`, `inline`, `plugins`, `connect_s`, `reconnect_s`.
    - What happens on failure: `on_error`, `timeout_s`.
    - What to measure: `headspace`.

    By default a batch is ``(images, labels)``: images are uint8, ``[batch, C, H, W]``, channels_last in memory; labels
    are int64, ``[batch]``. Batches are fresh tensors that may be kept and written to.

    The client connects at first use (`iter`, `len`, `samples`). Leaving an epoch early (``break``) and iterating again
    begins the next epoch. Threads may take turns with one client, but must not use it at the same time.

    Args:
        source: The dataset, such as an `ImageFolder` or a `Tar`. Its paths are on the daemon's machine.
        ops: The ops that turn a sample into a row of a batch, in order. `Decode` is implied. All rows must have the
            same shape.
        views: Number of images made from each sample, 1 to 16, each with its own random numbers (for self-supervised
            training). With more than one, a batch has a tuple of tensors in the place of the images, one for each view:
            ``for (a, b), labels in train``. The first view has the same bytes as with ``views=1``. A range gives the
            numbers of the views, on which their random numbers depend: clients of one seed that are read side by side,
            such as ``views=2`` and ``views=range(2, 8)``, make different crops of each sample.
        fields: What a batch looks like. ``"tuple"`` gives a tuple of all columns in order, usually ``(images,
            labels)``; ``"dict"`` gives a dict of these by name, with ``index`` (the sample's index in the source); a
            sequence of names gives a tuple of the fields named.
        collate: ``"batch"`` gives one tensor for each column. ``"list"``, for boxes, gives what torchvision's detection
            models take: ``for images, targets in train``, where `images` is a list of tensors and `targets` a list of
            dicts whose boxes, labels and keypoints have no padding. It synchronizes with the device at each batch.
        device_ops: Ops on whole batches, computed on `device`: `MixUp`, `CutMix`, `RandomChoice` of the two,
            `RandAugment`, `RandomErasing`, `ColorJitter`, `ToDtype`, `Normalize`, and `ToLayout` at the end. The same
            rows draw the same random numbers in every run. Jobs that differ only in these ops share all rows.
        normalize: ``(mean, std)``, one number for each channel or one for all, for values in [0, 1], or in the image's
            own unit if it is not uint8; computed on `device`. For uint8 it is short for ``ToDtype(torch.float32,
            scale=True), Normalize(mean, std)`` at the end of `device_ops`.
        dtype: The dtype of images: ``torch.float16``, ``torch.bfloat16`` or ``torch.float32``; uint8 values are scaled
            by 1/255. None keeps the dtype that `ops`, `device_ops` and `normalize` give.
        memory_format: The memory format of images: ``torch.channels_last`` or ``torch.contiguous_format``. None keeps
            that of the rows, which is channels_last unless `ops` change it.
        compile: Whether torch.compile fuses `device_ops`: None on a GPU only, True on the CPU, too, False never. If
            compiling fails, the ops run one by one, and a log line says why.
        batch_size: Rows in a batch of this process.
        shuffle: False keeps the order of the source. True shuffles in cyclic blocks: an epoch has each sample once, and
            other jobs may join at any block. ``"full"`` draws a new permutation for each epoch.
        order: The order of shuffling, batching and repeating, in tf.data's words. ``"shuffle-batch-repeat"``: a batch
            belongs to one epoch, and the last one may be short. ``"shuffle-repeat-batch"``: batches cross epochs, so
            all are full; an epoch ends with the batch that holds its last sample, and `len` may vary by one from epoch
            to epoch. ``"batch-shuffle-repeat"``: whole batches of consecutive samples are shuffled (with `shuffle` True
            or ``"full"``), and the short one, if any, stays last.
        seed: The seed of order and augmentation. The same seed gives the same bytes.
        drop_last: Drop the rows at the end of an epoch that do not fill a batch in every rank.
        sharding: The part of the samples that this process reads. None takes rank and world size from torch.distributed
            or the launcher (torchrun); a single process reads all samples.
        joining: How this job shares a running stream with other jobs: where an epoch may begin, and which job waits.
            None takes the defaults of `Joining`.
        device: Where batches go. None or ``"cpu"`` gives host tensors; ``"cuda[:i]"`` copies batches to the GPU ahead
            of the loop.
        prefetch: Rows (not batches) that the daemon keeps ready for this job. None lets it fill its ring.
        zero_copy: Lend memory that is valid until the next step, instead of handing out fresh tensors: read-only views
            of the ring on the CPU, where a write is a segmentation fault, or device buffers on a GPU. It has no effect
            if `device_ops`, `normalize`, `dtype` or `memory_format` make new tensors.
        output: ``"torch"`` gives tensors, ``"numpy"`` arrays over the same memory (read-only with `zero_copy`; CPU
            only), ``"jax"`` jax arrays through dlpack, on the CPU or a GPU.
        cache: What the daemon keeps in memory for all jobs that read the dataset: ``"encoded"``, samples as they are
            stored; ``"decoded"``, uint8 images after the ops at the start of `ops` that draw no random numbers
            (`Resize`, `CenterCrop`, `Pad` and `Grayscale`); or the path of a folder on the daemon's machine, for a
            cache on disk that survives restarts. The first epoch fills it, up to the daemon's budget. Rows have the
            same bytes with and without a cache. It has no effect with `inline`.
        job: The name of the run, the same in all ranks, for `prepserver status` and the audit. None takes the
            launcher's name of the run, or for a single process the script's name and the process id.
        runtime_dir: The daemon's directory. None searches ``$PREPSERVER_RUNTIME_DIR`` and the usual places.
        workers: Start a private daemon with this many workers if no daemon runs; ``"auto"`` adapts the number to what
            the jobs need and the cores allow. All clients of this process that ask for one share it. It ends when the
            last of them is closed or collected, or with the process. Of a run's ranks, each one reads a shard then,
            unless `sharding` says otherwise.
        inline: Make the same rows in this process, without a daemon, for debugging and tests.
        plugins: Your own code for `PluginOp` and `Plugin`: names of entry points or modules, or ``module:object``. Only
            with `workers` or `inline`; the configuration of a shared daemon names its own.
        connect_s: Longest wait in seconds for a daemon at first use. With 0, `NoServer` comes at once.
        reconnect_s: Longest wait in seconds for a daemon that went away, such as for a restart, before `ServerGone`.
            The next batch has the same rows as without the restart. With 0, `ServerGone` comes at once.
        on_error: What to do about a sample that cannot be made. ``"raise"`` raises `BadSampleError`; ``"skip"``
            silently replaces it with another sample, chosen by its index; ``"mask"`` replaces it and adds a field
            ``valid`` to the batch (bool, ``[batch]``, False for such rows).
        timeout_s: Longest wait in seconds for a batch, for the daemon's answer, or for a place with a busy daemon.
            After 30 s without a batch, a log line says what is missing.
        headspace: Number of steps for which to measure how fast the loop would run with an infinitely fast loader. In
            the first epoch, after ten steps to warm up and this many more to compare with, the loop gets this many
            batches that it had before; then the stream continues. The epoch of every rank is that much longer, and the
            model trains on these batches, too, so use it in a run made for measuring. `stats` and a log line have the
            result. 0 measures nothing.

    Raises:
        InvalidSpec: An argument is invalid. Raised before anything is sent.
    """

    def __init__(
        self,
        source: SourceSpec,
        ops: Sequence[Op],
        *,
        # what is in a batch
        views: int | range = 1,
        fields: Fields = "tuple",
        collate: Literal["batch", "list"] = "batch",
        device_ops: Sequence[Op] = (),
        normalize: tuple[Sequence[float], Sequence[float]] | None = None,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format | None = None,
        compile: bool | None = None,  # torch's word
        # how samples are ordered and batched
        batch_size: int = 1,
        shuffle: bool | str = False,
        order: Batching = "shuffle-batch-repeat",
        seed: int = 0,
        drop_last: bool = False,
        # which samples, and shared how
        sharding: Sharding | None = None,
        joining: Joining | None = None,
        # where batches go
        device: str | torch.device | None = None,
        prefetch: int | None = None,
        zero_copy: bool = False,
        output: Output = "torch",
        # what the daemon keeps
        cache: str | os.PathLike[str] | None = None,
        # which daemon makes the rows
        job: str | None = None,
        runtime_dir: str | os.PathLike[str] | None = None,
        workers: int | Literal["auto"] | None = None,
        inline: bool = False,
        plugins: str | Sequence[str] = (),
        connect_s: float = 10.0,
        reconnect_s: float = 300.0,
        # what happens on failure
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
        spec = make_spec(
            source, ops, batch_size=batch_size, shuffle=shuffle, order=order, seed=seed, drop_last=drop_last,
            views=views, sharding=sharding, job=job,
        )  # fmt: skip
        form = Form(spec.pipeline, fields, collate, on_error)
        finish = Finish(
            normalize, dtype, memory_format, device_ops, None if compile is None else boolean("compile", compile)
        )
        self._device_ops = finish.digest
        service = Service(
            runtime_dir=None if runtime_dir is None else path("runtime_dir", runtime_dir),
            workers=workers if workers in (None, "auto") else integer("workers", workers, 1, 1024),
            inline=boolean("inline", inline),
            plugins=names("plugins", plugins, "my_project.data"),
            cache=check_cache(cache, spec.pipeline),
            joining=joining or Joining(),
            prefetch=0 if prefetch is None else integer("prefetch", prefetch, 1, 2**31 - 1),
            connect_s=number("connect_s", connect_s, 0.0, MOST_S),
            reconnect_s=number("reconnect_s", reconnect_s, 0.0, MOST_S),
            timeout_s=number("timeout_s", timeout_s, LEAST_TIMEOUT_S, MOST_S),
        )
        self._makers = BatchMakers(
            spec, check_device(device), looks_of(spec.pipeline, finish), finish,
            zero_copy=boolean("zero_copy", zero_copy), has_valid=form.has_valid,
        )  # fmt: skip
        self._attachment = Attachment(spec, service, self._makers)
        self._loop = Loop(
            self._attachment, form, converter(output, self._makers.device, self._makers.dtypes, zero_copy=zero_copy),
            Headspace(integer("headspace", headspace, 0, 2**31 - 1), self._makers.device),
        )  # fmt: skip
        self._latest: ReferenceType[Epoch] | None = None  # weak: a loop that drops it ends it
        start = self._attachment.start
        self._closed = start, start  # where it stood at the last `close`, and what is saved of that

    # -- as in a DataLoader -----------------------------------------------------------------------------

    @in_turn
    def __iter__(self) -> Iterator[Any]:
        """One epoch; after `load_state_dict`, the rest of one."""
        if (spec := self._attachment.spec_of_group()) is not None:
            self._take_ranks(spec)
        session = self._attached()
        if not session.line.at_epoch_start and not self._attachment.goes_on:
            # The loop left this epoch early: begin the next one, wherever the order allows.
            session = self._restart(ResumePoint(session.epoch + 1))
        self._loop.iterators += 1
        latest = Epoch(self, self._loop, self._loop.begin_epoch(session))
        self._latest = ref(latest)
        return latest

    def __len__(self) -> int:
        """Batches of a whole epoch for this rank; if epochs differ (see `order`), of the next batch's epoch."""
        return self._attached().line.batches_per_epoch + self._loop.headspace.extra

    def __getitems__(self, indices: object) -> Never:
        """Raises TypeError: what a DataLoader around a client calls.

        There is no `__getitem__`: numpy and scripts take what has one for a dataset, not for a loader.
        """
        raise TypeError(
            "a PrepClient gives whole batches, and takes the DataLoader's place: iterate over it without a DataLoader"
        )

    @in_turn
    def set_epoch(self, epoch: int) -> None:
        """Makes `epoch` the next one to iterate over, as DistributedSampler's `set_epoch` does.

        It is not needed before each epoch: epochs follow each other, each in its own order. Naming the epoch that comes
        next anyway changes nothing; for any other one the client attaches again.
        An iterator from which nothing has been taken moves along, because Lightning calls `iter` first.

        Args:
            epoch: Number of the epoch, from 0.

        Raises:
            InvalidSpec: `epoch` is not a whole number, or is negative.
        """
        epoch = integer("epoch", epoch, 0, 2**40 - 1)
        at = self._attachment
        if at.session is None:
            # Setting the epoch of a loaded state keeps the place in it.
            if not (at.goes_on and at.start.epoch == epoch):
                at.start, at.goes_on = ResumePoint(epoch), False
        elif at.session.epoch != epoch or not (at.session.line.at_epoch_start or at.goes_on):
            latest = self._latest() if self._latest is not None else None
            unread = latest if latest is not None and latest.is_unread else None
            session = self._restart(ResumePoint(epoch))
            if unread is not None:
                unread.begin_at(self._loop.begin_epoch(session))

    @property
    def spec(self) -> Spec:
        """The checked arguments."""
        return self._attachment.spec

    @property
    def batch_size(self) -> int:
        """Rows in a batch of this process."""
        return self.spec.shape.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether the rows at the end of an epoch that do not fill a batch are dropped."""
        return self.spec.shape.drop_last

    @property
    def num_workers(self) -> int:
        """0: the workers belong to the daemon."""
        return 0

    @property
    def prefetch_factor(self) -> None:
        """None, as in a DataLoader without workers."""

    @property
    def dataset(self) -> Dataset:
        """The source as a dataset without samples: its length, and the names of its classes if it has any."""
        return Dataset(self)

    @property
    def sampler(self) -> Sampler:
        """For training loops that call ``loader.sampler.set_epoch(epoch)``; it yields no indices."""
        return SequentialSampler(self) if self.spec.shuffle == "none" else Sampler(self)

    @property
    def batch_sampler(self) -> BatchSampler:
        """As `sampler`, counted in batches; Lightning and Accelerate read it."""
        return BatchSampler(self)

    def __repr__(self) -> str:
        spec, shape = self.spec, self.spec.shape
        return (
            f"PrepClient({spec.source}, {list(spec.pipeline.ops)}, batch_size={shape.batch_size}, "
            f"order={spec.shuffle!r}, seed={spec.seed}, drop_last={shape.drop_last}, rank={shape.rank}, "
            f"world_size={shape.world_size}, device='{self._makers.device}', job={spec.job!r}, epoch={self.epoch})"
        )

    # -- beyond a DataLoader ----------------------------------------------------------------------------

    @property
    def samples(self) -> int:
        """Number of samples of the source: the rows of an epoch in all ranks of all shards together."""
        return self._attached().samples

    @property
    def num_classes(self) -> int:
        """Number of distinct labels of the source; 0 if it has none."""
        return self._feed().num_classes

    @property
    def plugins(self) -> tuple[str, ...]:
        """Names of the plug-ins that were given as `plugins`."""
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
        """What this job has received, where its time went, and what limits it.

        - ``batches``, ``images``, ``bad_samples``: what the loop has received: batches, rows in them, and rows among
          these that hold a replacement.
        - ``wait_s``, ``copy_s``, ``own_s``, ``rest_s``: seconds since the first batch was asked for, during which
          missing rows held up the loop; copying of ready rows held it up; the loop itself computed between two batches
          of an epoch (on a GPU, including the device's time); and anything else, such as evaluation, or waiting for
          another client that the loop reads too.
        - ``epoch``: the epoch of the next batch.
        - ``start``: position at which epoch 0 began, or would have begun. Another run with the same seed and
          ``Joining(start=...)`` of this number has the same order. None before the first use.
        - ``sharing_factor``: rows that all jobs have received, per row made for this job's stream; 3.0 if three jobs
          share everything.
        - ``verdict``: what limited the job in the last ten seconds, as a dict: ``verdict``, ``why`` and ``next`` (what
          to do) in words; ``kind``, ``causes``, ``is_fine`` and ``lost_fraction`` for programs.
        - ``headspace``: the result of the argument `headspace`: ``images_per_s`` with an infinitely fast loader,
          ``now_images_per_s`` with this one, and ``gain_fraction``. None until it has been measured.

        ``sharing_factor`` and ``verdict`` come from the daemon, in a few milliseconds; they are None while the client
        is not attached.

        Args:
            table: Return a readable text instead: seconds, milliseconds per step and per cent for loading, copying,
                computing and the rest, and the verdict. Print it at the end of a run, before `close`.
        """
        return self._loop.table() if table else self._loop.stats()

    def progress(self, epochs: int = 1) -> Iterator[Any]:
        """Iterates over the batches of the next `epochs` epochs, with a progress bar on stderr.

        The bar shows epoch, batches, time left, samples/s, and the share of its time that the loop waits for data:

            for images, labels in train.progress(90):
                ...

        Args:
            epochs: Number of epochs, at least 1. After `load_state_dict`, the first one is the rest of an epoch.

        Raises:
            InvalidSpec: `epochs` is not a whole number, or is below 1.
        """
        return with_bar(
            self.__iter__, integer("epochs", epochs, 1, 2**31), lambda: self._loop.totals,
            lambda: self._attached().line.batches_per_epoch,
        )  # fmt: skip

    @in_turn
    def timeline(self, path: str | os.PathLike[str], steps: int = 200) -> None:
        """Records the next `steps` steps and writes them to a trace for Perfetto (ui.perfetto.dev).

        The trace shows the training loop (loading, copying, computing) and the chunks of all workers. Arrows lead from
        each chunk to the announcement of its rows, on to the copy of the batch that holds them, and to the step that
        computes with it. The last step takes a few milliseconds longer, because it writes the file. `close`, or another
        call, writes what has been recorded so far.

        Args:
            path: The file to write, such as ``run.pftrace``. A failure to write it is logged and ends nothing.
            steps: Number of steps, at least 1. The daemon remembers only the last 4096 chunks.

        Raises:
            InvalidSpec: `path` is no path, or `steps` is not a whole number or is below 1.
        """
        on_cpu = self._makers.device.type == "cpu"
        self._loop.begin_timeline(Timeline(path, steps, self.spec.job, on_cpu=on_cpu))

    def state_dict(self) -> dict[str, Any]:
        """The position of this job for a checkpoint: a dict of a few numbers and strings.

        It names the batch after the last one that the loop received, or in a job of one process the one that has just
        raised `BadSampleError`. It may be loaded with another batch size, number of workers, ranks or shards, and on
        another machine, as long as source (its labels and relative paths), order, seed and ops are the same. If whole
        batches are shuffled (`order`), batch size and number of shards must be the same, too.

        It is the same in all ranks of all shards, because it counts the samples that they have taken together. If
        another number of shards does not divide this count, the next use raises `InvalidSpec`.
        """
        at = self._attachment
        at.find_shard()
        return state_of(self.spec.digest, self._saved(), at.began, at.listing, self._device_ops)

    @in_turn
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues after the last batch that was received when `state` was taken.

        The next iteration is the rest of that epoch. If the dataset has changed since, the next use raises
        `SourceChanged`; to read the new samples, call ``set_epoch(state["epoch"])`` instead of this method: it begins
        that epoch again. Other `device_ops` change no row, so they only bring a warning in the log.

        Args:
            state: What `state_dict` returned.

        Raises:
            InvalidSpec: `state` is no such dict, or is of another source, order, seed or pipeline.
        """
        at = self._attachment
        at.find_shard()
        place, began, listing, device_ops = read_state(state, self.spec.digest)
        if device_ops != self._device_ops:
            log.warning(
                "the state was taken with other device_ops: this job continues with the same rows, but its own ops"
            )
        at.detach()
        at.start, at.began, at.listing = place, began, listing
        at.goes_on = place.position is not None
        self._loop.iterators += 1

    @in_turn
    def close(self) -> None:
        """Leaves the daemon and frees the ring. Idempotent.

        Fresh tensors stay valid, and `state_dict` still works. Iterating again attaches again; if an epoch was left
        early, the next one begins.
        """
        self._loop.end_timeline()
        self._loop.headspace.end_epoch()
        saved = self._saved()
        self._attachment.close()
        self._closed = self._attachment.start, saved
        self._loop.iterators += 1

    def _saved(self) -> ResumePoint:
        """The place that a checkpoint holds."""
        at = self._attachment
        if at.session is not None:
            return place_of(at.session.to_save())
        start, saved = self._closed
        return saved if start is at.start else at.start

    def __enter__(self) -> PrepClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        """Raises TypeError: a connection and its memory cannot be sent to another process."""
        raise TypeError(
            "a PrepClient cannot be pickled or copied: it belongs to one process. Make it in the process that uses it, "
            "without a DataLoader around it; to continue elsewhere, send state_dict()"
        )

    # -- inside -----------------------------------------------------------------------------------------

    def _feed(self) -> Feed:
        self._attached()
        assert self._attachment.feed is not None
        return self._attachment.feed

    def _attached(self) -> Session:
        at = self._attachment
        at.check_process()
        if not at.is_under_way and (spec := at.spec_of_group()) is not None:
            self._take_ranks(spec)
        return at.session or self._come()

    @in_turn
    def _take_ranks(self, spec: Spec) -> None:
        self._attachment.check_process()
        self._loop.iterators += 1
        self._attachment.take_ranks(spec)

    @in_turn
    def _come(self) -> Session:
        return self._attachment.come()

    def _restart(self, start: ResumePoint) -> Session:
        self._attachment.detach()
        self._attachment.start = start
        self._loop.iterators += 1  # ends iterators of the old epoch
        return self._attached()
