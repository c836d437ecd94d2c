"""Checks the arguments of a `PrepClient` before anything is sent, and makes a spec from them."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast, get_args

import numpy as np

from prepclient.checks import boolean
from prepclient.equivalents import refuse_torchvision
from prepclient.errors import InvalidSpec
from prepclient.sharding import Sharding, apart, find_ranks
from prepserver.pipeline.batches import Batching, BatchShape, batch_rows
from prepserver.pipeline.caching import wanted
from prepserver.pipeline.checks import choice, integer
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.kinds import Tokens
from prepserver.pipeline.ops import MaskTokens, Op
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.source import SourceSpec, absolute, check_bytes
from prepserver.pipeline.sources import SOURCES
from prepserver.protocol.messages import Shuffle

log = logging.getLogger("prepclient")

_SHUFFLES: dict[object, Shuffle] = {False: "none", "full": "full", True: "cyclic"}


@dataclass(frozen=True, slots=True)
class Spec:
    """A checked request, in the words of the protocol."""

    source: SourceSpec
    pipeline: Pipeline  # canonical
    shuffle: Shuffle
    seed: int  # seed of order and augmentation
    shape: BatchShape
    local_ranks: tuple[int, int] | None  # (first, count) of the ranks on this machine; None for all
    job: str
    sharding: Sharding  # as given
    is_job_given: bool
    is_apart: bool = False  # whether each rank reads a shard of its own, from a private daemon

    def has_order_of(self, other: Spec) -> bool:
        """Whether both name the same samples in the same batches, if they begin at the same position."""
        mine, theirs = ((each.source, each.shuffle, each.seed, each.shape) for each in (self, other))
        return mine == theirs

    def at_present(self, *, is_apart: bool) -> Spec:
        """This spec with the present ranks, `apart` if several, or itself if these are given. Errors as `make_spec`."""
        if self.sharding != Sharding():
            return self
        ranks = find_ranks(self.sharding, os.environ)
        is_apart = is_apart and ranks.world_size > 1
        if is_apart:
            ranks = apart(ranks)
        shape = replace(self.shape, rank=ranks.rank, world_size=ranks.world_size, shard=ranks.shard)
        if (shape, ranks.local) == (self.shape, self.local_ranks):
            return self
        job = self.job if self.is_job_given else _job_name(ranks.world_size)
        return replace(self, shape=shape, local_ranks=ranks.local, job=job, is_apart=is_apart)

    @property
    def digest(self) -> str:
        """Identifies the stream of rows: source, order, seed and pipeline, but not batches."""
        # The dataset's place does not count, so that a checkpoint works on another machine.
        source = self.source.without_paths()
        # If whole batches are shuffled, batch size and shards decide the order of samples.
        whole, shards = batch_rows(self.shape.batching, self.shape.batch_size), self.shape.shard.count
        batches = f" batches of {whole}{f' in {shards} shards' if shards > 1 else ''}" if whole else ""
        text = f"{source} {self.shuffle} {self.seed} {self.pipeline.digest}{batches}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_spec(
    source: SourceSpec, ops: Sequence[Op], *, batch_size: int, shuffle: bool | str, seed: int, drop_last: bool,
    order: str = "shuffle-batch-repeat", views: int | range = 1, sharding: Sharding | None = None,
    job: str | None = None,
) -> Spec:  # fmt: skip
    """Checks the arguments of a `PrepClient`; an `InvalidSpec` names the argument, its value and the choices."""
    if isinstance(shuffle, np.bool_):
        shuffle = bool(shuffle)
    if not isinstance(shuffle, bool | str) or shuffle not in _SHUFFLES:
        raise SpecError("shuffle", shuffle, "True (cyclic blocks), False (sequential) or 'full'")
    batching = cast(Batching, choice("order", order, get_args(Batching)))
    wire_shuffle = _SHUFFLES[shuffle]
    if batching == "batch-shuffle-repeat":
        if wire_shuffle == "none":
            raise SpecError("shuffle", shuffle, "must be True or 'full' with order='batch-shuffle-repeat'")
        wire_shuffle = "full"  # a pass is one permutation of batches, with the short one last
    batch_size = integer("batch_size", batch_size, 1, 2**20)
    seed = integer("seed", seed, 0, 2**63 - 1)
    refuse_torchvision(source, ops)
    _check_source(source)
    assert isinstance(source, SourceSpec)
    if not isinstance(ops, Sequence) or isinstance(ops, str):
        raise SpecError("ops", ops, "a list of ops, such as [RandomResizedCrop(224)]")
    if job is not None and not (isinstance(job, str) and 0 < len(job) <= 256 and job.isprintable()):
        raise SpecError("job", job, "a name of 1 to 256 printable characters")
    if source.arrangement[1] and wire_shuffle != "none" and batching != "batch-shuffle-repeat":
        log.warning(
            "%s sorts samples by length, and order=%r shuffles single samples, so batches hold all lengths again. Pass "
            "order='batch-shuffle-repeat'", type(source).__name__, batching,
        )  # fmt: skip
    pipeline = Pipeline.from_ops(list(ops), views, source.columns)
    _warn_of_masked_padding(pipeline)
    if not isinstance(sharding, Sharding | None):
        raise SpecError("sharding", sharding, "Sharding(...), or None for the launcher's ranks")
    sharding = sharding or Sharding()
    ranks = find_ranks(sharding, os.environ)
    shape = BatchShape(batch_size, boolean("drop_last", drop_last), ranks.rank, ranks.world_size, ranks.shard, batching)
    name = _job_name(ranks.world_size) if job is None else job
    return Spec(source, pipeline, wire_shuffle, seed, shape, ranks.local, name, sharding, job is not None)


def _warn_of_masked_padding(pipeline: Pipeline) -> None:
    kinds = {field.name: field.kind for field in pipeline.fields}
    for op in pipeline.ops:
        kind = kinds.get(op.column) if isinstance(op, MaskTokens) else None
        if isinstance(op, MaskTokens) and isinstance(kind, Tokens) and kind.fill not in (None, *op.special):
            log.warning(
                "MaskTokens hides and predicts padding, too: its special tokens %s lack %d", list(op.special), kind.fill
            )


def _check_source(source: object) -> None:
    if not isinstance(source, SourceSpec):
        reason = f"a source, such as ImageFolder(path), one of {', '.join(SOURCES)}"
        is_data = isinstance(source, str | Sequence | Mapping) or hasattr(source, "dtype")
        if hasattr(source, "__getitem__") and not is_data:
            of = source if isinstance(source, type) else type(source)
            name, module = of.__name__, of.__module__
            plugin = f'"{"MODULE" if module == "__main__" else module}:{name}"'
            if module.startswith("datasets."):
                reason += ". Of a dataset of Hugging Face, call save_to_disk(path), and pass HuggingFace(path)"
            else:
                reason += (
                    f'. A Dataset of your own is a plug-in: Plugin("{name}", ...) with workers=N, plugins={plugin} '
                    "(docs/plugins.md)"
                )
        raise SpecError("source", source, reason)
    check_bytes("source", source)


def check_cache(cache: object, pipeline: Pipeline) -> str:
    """The cache in the words of the protocol; raises `SpecError` if this pipeline cannot have it."""
    if cache is None:
        return ""
    is_word = isinstance(cache, str) and "/" not in cache
    if not isinstance(cache, str | os.PathLike) or (is_word and cache not in ("encoded", "decoded")):
        raise SpecError("cache", cache, "'encoded', 'decoded', the path of a folder with a slash, or None")
    name = str(cache) if is_word else absolute("cache", cache)
    wanted(name, pipeline)
    return name


def _job_name(world_size: int) -> str:
    if world_size == 1:
        script = "".join(c if c.isprintable() else "_" for c in os.path.basename(sys.argv[0]))
        named = {"ipykernel_launcher.py": "notebook", "-": "stdin", "-c": "python", "": "python"}
        return f"{named.get(script, script)}-{os.getpid()}"
    env = os.environ
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        if env.get(name, "none") != "none":
            # A restarted attempt is another job: its ranks must not join those of the failed attempt.
            return f"{env[name]}-{env.get('TORCHELASTIC_RESTART_COUNT', env.get('SLURM_STEP_ID', '0'))}"
    if "MASTER_PORT" in env:
        return f"{env.get('MASTER_ADDR', 'localhost')}:{env['MASTER_PORT']}"
    raise InvalidSpec(
        f"world_size = {world_size}: all ranks of a run need the same job name, and no launcher gives one. "
        "Pass job='NAME', the same in all ranks",
        "job",
    )
