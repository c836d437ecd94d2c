"""What a `PrepClient` was asked for, checked and put into the form that a daemon understands.

Everything that can be wrong with an argument is said here, before anything is sent.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np
import torch

from prepclient.equivalents import refuse_torchvision
from prepclient.errors import InvalidSpec, UnknownField
from prepclient.session import Shape
from prepserver.pipeline.batches import Batching, batch_rows
from prepserver.pipeline.checks import integer, number
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.ops import Op
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.record import INDEX
from prepserver.pipeline.shard import MAX_SHARDS, WHOLE, Shard
from prepserver.pipeline.source import SourceSpec
from prepserver.pipeline.sources import SOURCES

VALID = "valid"
"""The field that `on_error="mask"` adds."""

OnError = Literal["raise", "skip", "mask"]
Fields = Literal["tuple", "dict"] | Sequence[str]

_SHUFFLES: dict[object, Literal["none", "full", "cyclic"]] = {False: "none", "full": "full", True: "cyclic"}


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among the data-parallel processes of its run.

    Attributes:
        rank: 0 <= rank < world_size.
        world_size: Processes that read this shard.
        local: (first, count) of the ranks on this machine, None for all.
        shard: The part of the samples that these processes read.
    """

    rank: int
    world_size: int
    local: tuple[int, int] | None
    shard: Shard = WHOLE


@dataclass(frozen=True, slots=True)
class Spec:
    """A checked request.

    Attributes:
        source: The dataset.
        pipeline: Canonical.
        shuffle: The wire's word for the order.
        seed: Of order and augmentation.
        shape: Of the batches.
        ranks: Where this process stands.
        job: Name of the run.
    """

    source: SourceSpec
    pipeline: Pipeline
    shuffle: Literal["none", "full", "cyclic"]
    seed: int
    shape: Shape
    ranks: Ranks
    job: str

    @property
    def digest(self) -> str:
        """Names the stream of rows: source, order, seed and pipeline, but not how it is cut into batches."""
        # Where the dataset lies is left out: a checkpoint goes to another machine.
        source = sorted((k, v) for k, v in self.source.to_wire().items() if k not in type(self.source).paths)
        # Where whole batches are shuffled, their size decides which sample comes when, and so do the shards whose
        # samples a batch is made of.
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
    rank: int | None,
    world_size: int | None,
    job: str | None,
    num_shards: int | None = None,
    shard_index: int | None = None,
    views: int = 1,
    order: str = "shuffle-batch-repeat",
) -> Spec:
    """Checks the arguments of a `PrepClient`.

    Raises:
        InvalidSpec: Naming the field, the value and what would be right.
    """
    if isinstance(shuffle, np.bool_):
        shuffle = bool(shuffle)
    if not isinstance(shuffle, bool | str) or shuffle not in _SHUFFLES:
        raise _invalid("shuffle", shuffle, "True (cyclic blocks), False (sequential) or 'full'")
    check_choice("order", order, get_args(Batching))
    batching = cast(Batching, order)
    wire_shuffle = _SHUFFLES[shuffle]
    if batching == "batch-shuffle-repeat":
        if wire_shuffle == "none":
            raise _invalid("shuffle", shuffle, "True or 'full' with order='batch-shuffle-repeat'")
        wire_shuffle = "full"  # the batches of a pass are one permutation, and its short batch is its last
    batch_size = whole("batch_size", batch_size, 1, 2**20)
    seed = whole("seed", seed, 0, 2**63 - 1)
    refuse_torchvision(source, ops)
    if not isinstance(source, SourceSpec):
        raise _invalid("source", source, " or ".join(f"{name}(...)" for name in SOURCES))
    if not isinstance(ops, Sequence) or isinstance(ops, str):
        raise _invalid("ops", ops, "a list of ops, such as [RandomResizedCrop(224)]")
    if job is not None and not (isinstance(job, str) and 0 < len(job) <= 256 and job.isprintable()):
        raise _invalid("job", job, "a name of 1 to 256 characters that can be shown, so no control characters")
    try:
        pipeline = Pipeline.from_ops(list(ops), views, source.columns)
    except SpecError as e:
        raise InvalidSpec(str(e), e.field) from e
    ranks = find_ranks(rank, world_size, os.environ, num_shards, shard_index)
    return Spec(
        source,
        pipeline,
        wire_shuffle,
        seed,
        Shape(batch_size, flag("drop_last", drop_last), ranks.rank, ranks.world_size, ranks.shard, batching),
        ranks,
        job if job is not None else _job_name(ranks),
    )


def find_ranks(
    rank: int | None,
    world_size: int | None,
    environ: Mapping[str, str],
    num_shards: int | None = None,
    shard_index: int | None = None,
) -> Ranks:
    """Rank and world size: as given, else torch.distributed's, else the launcher's (torchrun), else one process.

    With shards they count the processes of one shard. Where the launcher says without doubt that the run spans several
    machines with equally many processes, and nothing was given, each machine is a shard: its daemon then makes the
    rows of its own processes and no others.

    Raises:
        InvalidSpec: Only one of two was given, or they contradict each other.
    """
    for one, other, name in ((rank, world_size, "rank"), (num_shards, shard_index, "num_shards")):
        if (one is None) != (other is None) and not (name == "num_shards" and num_shards == 1):
            missing = {"rank": "world_size", "num_shards": "shard_index"}[name]
            raise InvalidSpec(f"{name} and {missing} come together", name if one is None else missing)
    shard = None if num_shards is None else _shard(num_shards, shard_index or 0)
    if rank is not None and world_size is not None:
        return _checked(rank, world_size, None, shard or WHOLE)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    elif "RANK" in environ and "WORLD_SIZE" in environ:
        rank, world_size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    else:
        rank, world_size = 0, 1
    _checked(rank, world_size, None, WHOLE)
    found = Ranks(rank, world_size, _local_ranks(environ, rank, world_size), shard or WHOLE)
    if shard is None:
        shard = _machine(environ, found)
    if shard is None or shard.count == 1:
        return found
    if found.local is not None:
        return Ranks(rank - found.local[0], found.local[1], None, shard)
    if world_size > 1 and "LOCAL_WORLD_SIZE" not in environ:
        raise InvalidSpec(
            f"num_shards = {shard.count}: rank and world_size count the processes of one shard, and the launcher does "
            f"not say which of the {world_size} these are. Pass both",
            "rank",
        )
    return found


def _machine(environ: Mapping[str, str], found: Ranks) -> Shard | None:
    """This machine's shard, if the launcher says that all machines run equally many processes (torchrun does)."""
    if found.local is None or "GROUP_RANK" not in environ or "GROUP_WORLD_SIZE" not in environ:
        return None
    first, count = found.local
    machine, machines = _number(environ, "GROUP_RANK"), _number(environ, "GROUP_WORLD_SIZE")
    if machines * count != found.world_size or machine * count != first:
        return None
    return _shard(machines, machine)


def _local_ranks(environ: Mapping[str, str], rank: int, world_size: int) -> tuple[int, int] | None:
    """(first, count) of the ranks on this machine, None where the launcher knows of no others."""
    if "LOCAL_RANK" not in environ or "LOCAL_WORLD_SIZE" not in environ:
        return None
    count = _number(environ, "LOCAL_WORLD_SIZE")
    if count >= world_size:
        return None
    first = rank - _number(environ, "LOCAL_RANK")
    if not 0 <= first <= rank < first + count <= world_size:
        raise InvalidSpec(
            f"$LOCAL_RANK = {environ['LOCAL_RANK']} and $LOCAL_WORLD_SIZE = {count} contradict "
            f"rank = {rank} of world_size = {world_size}",
            "LOCAL_RANK",
        )
    return first, count


def _checked(rank: int, world_size: int, local: tuple[int, int] | None, shard: Shard) -> Ranks:
    world_size = whole("world_size", world_size, 1, 2**16)
    return Ranks(whole("rank", rank, 0, world_size - 1), world_size, local, shard)


def _shard(num_shards: int, shard_index: int) -> Shard:
    num_shards = whole("num_shards", num_shards, 1, MAX_SHARDS)
    return Shard(num_shards, whole("shard_index", shard_index, 0, num_shards - 1))


def check_fields(fields: object, on_error: str, pipeline: Pipeline) -> tuple[str, ...] | None:
    """The fields of a batch in order, or None for a dict of all of them.

    Raises:
        UnknownField: One that no batch has.
        InvalidSpec: Neither "tuple", "dict" nor a sequence of names.
    """
    masked = (VALID,) if on_error == "mask" else ()
    known = (*pipeline.columns, INDEX, VALID)
    if fields == "dict":
        return None
    if fields == "tuple":
        return (*pipeline.columns, *masked)
    if isinstance(fields, str) or not isinstance(fields, Sequence) or not fields:
        raise _invalid("fields", fields, "'tuple', 'dict', or names in the order in which you want them")
    for name in fields:
        if name == VALID and not masked:
            raise UnknownField("fields names 'valid', which only on_error='mask' gives", "fields")
        if name not in known:
            text = f"fields names {name!r}, which no batch has; there are {', '.join(known)}"
            raise UnknownField(text, "fields")
    return tuple(fields)


def check_choice(field: str, value: object, allowed: Sequence[object]) -> None:
    """Refuses a value that is none of `allowed`.

    Raises:
        InvalidSpec: Naming field, value and choices.
    """
    if value not in allowed:
        raise _invalid(field, value, "one of " + ", ".join(map(repr, allowed)))


def _job_name(ranks: Ranks) -> str:
    if ranks.world_size == 1:
        script = "".join(c if c.isprintable() else "_" for c in os.path.basename(sys.argv[0]))
        return f"{script or 'python'}-{os.getpid()}"
    env = os.environ
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        if env.get(name, "none") != "none":
            # a restarted attempt is another job: its ranks must not meet those of the one that failed
            return f"{env[name]}-{env.get('TORCHELASTIC_RESTART_COUNT', env.get('SLURM_STEP_ID', '0'))}"
    if "MASTER_PORT" in env:
        return f"{env.get('MASTER_ADDR', 'localhost')}:{env['MASTER_PORT']}"
    raise InvalidSpec(
        f"world_size = {ranks.world_size}: the ranks of a run must name it alike, and no launcher's variable does. "
        "Pass job='NAME', the same in all of them",
        "job",
    )


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise InvalidSpec(f"${name} = {environ[name]!r} is not a number", name) from None


def whole(field: str, value: object, low: int, high: int) -> int:
    """The value, of any integer type, as an int in [low, high].

    Raises:
        InvalidSpec: Naming the field, the value and the limits.
    """
    try:
        return integer(field, value, low, high)
    except SpecError as e:
        raise _invalid(field, value, f"a whole number in [{low}, {high}]") from e


def flag(field: str, value: object) -> bool:
    """The value, True or False as Python, numpy or 0 and 1 spell them.

    Raises:
        InvalidSpec: Naming field and value.
    """
    if not isinstance(value, bool | int | np.bool_) or value not in (False, True):
        raise _invalid(field, value, "True or False")
    return bool(value)


def seconds(field: str, value: object, *, above_zero: bool = False) -> float:
    """The value, a number of seconds.

    Raises:
        InvalidSpec: Naming field, value and limits.
    """
    try:
        found = number(field, value, 0.0, 1e9)
        if found > 0 or not above_zero:
            return found
    except SpecError:
        pass
    raise _invalid(field, value, f"seconds, {'more than' if above_zero else 'at least'} 0 and at most 1e9")


def _invalid(field: str, value: object, reason: str) -> InvalidSpec:
    return InvalidSpec(str(SpecError(field, value, reason)), field)
