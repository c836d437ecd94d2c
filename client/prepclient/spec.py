"""Checks the arguments of a `PrepClient`, before anything is sent, and makes a spec of them."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np

from prepclient.checks import choice, flag, invalid, whole
from prepclient.equivalents import refuse_torchvision
from prepclient.errors import InvalidSpec, UnknownField
from prepclient.session import Shape
from prepclient.sharding import Sharding, find_ranks
from prepserver.pipeline.batches import Batching, batch_rows
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.ops import Op
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import INDEX
from prepserver.pipeline.source import SourceSpec
from prepserver.pipeline.sources import SOURCES

VALID = "valid"
"""The field that `on_error="mask"` adds."""

OnError = Literal["raise", "skip", "mask"]
Fields = Literal["tuple", "dict"] | Sequence[str]

_SHUFFLES: dict[object, Literal["none", "full", "cyclic"]] = {False: "none", "full": "full", True: "cyclic"}


@dataclass(frozen=True, slots=True)
class Spec:
    """A checked request.

    Attributes:
        source: The dataset.
        pipeline: Canonical.
        shuffle: The order, in the protocol's word.
        seed: Seed of order and augmentation.
        shape: Shape of the batches.
        local_ranks: (first, count) of the ranks on this machine, None for all.
        job: Name of the run.
    """

    source: SourceSpec
    pipeline: Pipeline
    shuffle: Literal["none", "full", "cyclic"]
    seed: int
    shape: Shape
    local_ranks: tuple[int, int] | None
    job: str

    @property
    def digest(self) -> str:
        """Names the stream of rows (source, order, seed and pipeline), independent of batches."""
        # Without the dataset's place, so that a checkpoint works on another machine.
        source = self.source.placeless()
        # If whole batches are shuffled, batch size and shards decide the order of samples.
        whole, shards = batch_rows(self.shape.batching, self.shape.batch_size), self.shape.shard.count
        batches = f" batches of {whole}{f' in {shards} shards' if shards > 1 else ''}" if whole else ""
        text = f"{source} {self.shuffle} {self.seed} {self.pipeline.digest}{batches}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_spec(
    source: SourceSpec,
    ops: Sequence[Op],
    *,
    batch_size: int,
    shuffle: bool | str,
    seed: int,
    drop_last: bool,
    order: str = "shuffle-batch-repeat",
    views: int = 1,
    sharding: Sharding | None = None,
    job: str | None = None,
) -> Spec:
    """Checks the arguments of a `PrepClient`.

    Raises:
        InvalidSpec: An argument is invalid; the text names it, its value and the choices.
    """
    if isinstance(shuffle, np.bool_):
        shuffle = bool(shuffle)
    if not isinstance(shuffle, bool | str) or shuffle not in _SHUFFLES:
        raise invalid("shuffle", shuffle, "True (cyclic blocks), False (sequential) or 'full'")
    choice("order", order, get_args(Batching))
    batching = cast(Batching, order)
    wire_shuffle = _SHUFFLES[shuffle]
    if batching == "batch-shuffle-repeat":
        if wire_shuffle == "none":
            raise invalid("shuffle", shuffle, "True or 'full' with order='batch-shuffle-repeat'")
        wire_shuffle = "full"  # a pass is one permutation of batches, with the short one last
    batch_size = whole("batch_size", batch_size, 1, 2**20)
    seed = whole("seed", seed, 0, 2**63 - 1)
    refuse_torchvision(source, ops)
    if not isinstance(source, SourceSpec):
        raise invalid("source", source, " or ".join(f"{name}(...)" for name in SOURCES))
    if not isinstance(ops, Sequence) or isinstance(ops, str):
        raise invalid("ops", ops, "a list of ops, such as [RandomResizedCrop(224)]")
    if job is not None and not (isinstance(job, str) and 0 < len(job) <= 256 and job.isprintable()):
        raise invalid("job", job, "a name of 1 to 256 printable characters")
    try:
        pipeline = Pipeline.from_ops(list(ops), views, source.columns)
    except SpecError as e:
        raise InvalidSpec(str(e), e.field) from e
    if not isinstance(sharding, Sharding | None):
        raise invalid("sharding", sharding, "Sharding(...), or None for what the launcher says")
    ranks = find_ranks(sharding or Sharding(), os.environ)
    return Spec(
        source,
        pipeline,
        wire_shuffle,
        seed,
        Shape(batch_size, flag("drop_last", drop_last), ranks.rank, ranks.world_size, ranks.shard, batching),
        ranks.local,
        job if job is not None else _job_name(ranks.world_size),
    )


def check_fields(fields: object, on_error: str, pipeline: Pipeline) -> tuple[str, ...] | None:
    """The fields of a batch in order, or None for a dict of all of them.

    Raises:
        UnknownField: One that no batch has.
        InvalidSpec: Neither "tuple", "dict" nor a sequence of names.
    """
    masked = (VALID,) if on_error == "mask" else ()
    columns = list(dict.fromkeys(each.column for each in pipeline.fields if each.column != INDEX))
    known = (*columns, INDEX, VALID)
    if fields == "dict":
        return None
    if fields == "tuple":
        return (*columns, *masked)
    if isinstance(fields, str) or not isinstance(fields, Sequence) or not fields:
        raise invalid("fields", fields, "'tuple', 'dict', or names in the order in which you want them")
    for name in fields:
        if name == VALID and not masked:
            raise UnknownField("fields names 'valid', which only on_error='mask' gives", "fields")
        if name not in known:
            text = f"fields names {name!r}, which no batch has; there are {', '.join(known)}"
            raise UnknownField(text, "fields")
    return tuple(fields)


def parted_columns(pipeline: Pipeline) -> dict[str, list[str]]:
    """The columns with one number for each of several views, and the fields that hold them."""
    found: dict[str, list[str]] = {}
    for field in pipeline.fields:
        if pipeline.views > 1 and field.kind.is_spatial and not field.shape:
            found.setdefault(field.column, []).append(field.name)
    return found


def _job_name(world_size: int) -> str:
    if world_size == 1:
        script = "".join(c if c.isprintable() else "_" for c in os.path.basename(sys.argv[0]))
        return f"{script or 'python'}-{os.getpid()}"
    env = os.environ
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        if env.get(name, "none") != "none":
            # A restarted attempt is another job: its ranks must not join those of the failed one.
            return f"{env[name]}-{env.get('TORCHELASTIC_RESTART_COUNT', env.get('SLURM_STEP_ID', '0'))}"
    if "MASTER_PORT" in env:
        return f"{env.get('MASTER_ADDR', 'localhost')}:{env['MASTER_PORT']}"
    raise InvalidSpec(
        f"world_size = {world_size}: all ranks of a run need the same job name, and no launcher gives one. "
        "Pass job='NAME', the same in all ranks",
        "job",
    )
