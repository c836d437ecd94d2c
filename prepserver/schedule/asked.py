"""Checks a rank's question, and computes the positions of its batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from prepserver.pipeline.batches import BatchLine, BatchShape, Starts, check_start
from prepserver.pipeline.caching import CacheSpec, wanted
from prepserver.pipeline.declared import PluginSpec
from prepserver.pipeline.errors import SpecError
from prepserver.pipeline.pipeline import Pipeline
from prepserver.pipeline.shard import Shard
from prepserver.pipeline.sources import source_from_wire
from prepserver.pipeline.spec import FILE, Codes, Role
from prepserver.protocol.layout import Field, whole_page_rows
from prepserver.protocol.messages import Attach, lag_error
from prepserver.schedule.records import ROUNDS_NEEDED

_LOCAL_RANKS_MOST = 1024  # each is a cursor that every decision looks at
_SIBLINGS_LATE = 2  # batches: one, because data-parallel ranks wait for each other in every step, and one for safety
_ROUNDS_WANTED = 4  # one in the client's hands, one on its way, two to absorb a slow sample
_SMALL_RING_BYTES = 256 << 20
_SMALL_RING_ROWS = 512  # where rows are small, a longer ring costs little and lets jobs drift and join

Orders = Callable[[Attach, int], Starts]
"""Makes the order for a question and a number of samples."""


class Refusal(Exception):
    """A rank gets no place; its client gets `code`, text and `field`."""

    def __init__(self, code: str, text: str, field: str | None = None) -> None:
        super().__init__(text[:4000])
        self.code = code
        self.field = field[:200] if field else None


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that passed `check`."""

    attach: Attach
    source: dict[str, Any]
    pipeline: Pipeline
    cache: CacheSpec | None = None


@dataclass(frozen=True, slots=True)
class EpochPosition:
    """The start of an epoch, and a position in it: where a job begins, or resumes."""

    epoch_start: int
    position: int


def check(attach: Attach, codes: Codes = MappingProxyType({})) -> Asked:
    """Checks a question as far as possible before its source is listed.

    Source and pipeline get the code digests of the plug-ins that they name, from `codes`.

    Raises:
        Refusal: Spec or numbers are invalid.
    """
    if not attach.job.isprintable():
        raise Refusal("spec", f"job = {attach.job!r} contains unprintable characters; use others", "job")
    _check_ranks(attach)
    if attach.shard_index >= attach.num_shards:
        text = f"shard_index = {attach.shard_index} is not in [0, num_shards = {attach.num_shards})"
        raise Refusal("spec", text, "shard_index")
    if attach.batching == "batch-shuffle-repeat" and attach.shuffle != "full":
        raise Refusal("spec", f"batches are shuffled by a full permutation, not by {attach.shuffle!r}", "shuffle")
    if (wrong := lag_error(attach.lag)) is not None:
        raise Refusal("spec", wrong, "lag")
    if (attach.position is None) != (attach.epoch_start is None):
        raise Refusal("spec", "position and epoch_start come together", "position")
    try:
        source = source_from_wire(attach.source).with_code(codes)
        pipeline = Pipeline.from_wire(attach.pipeline, source.columns).with_code(codes)
        cache = wanted(attach.cache, pipeline)
    except SpecError as e:
        raise Refusal("spec", str(e), e.field) from e
    return Asked(attach, source.to_wire(), pipeline, cache)


def with_files(asked: Asked, digests: Sequence[str]) -> Asked:
    """The question with the digests of the files that its ops read; raises `Refusal` if it asks for other content."""
    codes: dict[tuple[Role | Literal["file"], str], str] = {
        (FILE, path): digest for path, digest in zip(asked.pipeline.files, digests, strict=True)
    }
    codes |= {(op.role, op.name): op.code for op in asked.pipeline.ops if isinstance(op, PluginSpec)}
    try:
        return replace(asked, pipeline=asked.pipeline.with_code(codes))
    except SpecError as e:
        raise Refusal("spec", str(e), e.field) from e


def _check_ranks(attach: Attach) -> None:
    here = local_ranks(attach)
    if not 0 <= attach.rank < attach.world_size:
        raise Refusal("spec", f"rank = {attach.rank} is not in [0, world_size = {attach.world_size})", "rank")
    if attach.rank not in here or here.stop > attach.world_size:
        raise Refusal("spec", f"local_ranks = {attach.local_ranks} does not hold rank {attach.rank}", "rank")
    if len(here) > _LOCAL_RANKS_MOST:
        raise Refusal(
            "spec",
            f"{len(here)} ranks on one machine, at most {_LOCAL_RANKS_MOST}: if the others run on other machines, the "
            "launcher must set LOCAL_RANK and LOCAL_WORLD_SIZE",
            "world_size",
        )


def shard_of(attach: Attach) -> Shard:
    """The part of the samples that a job reads."""
    return Shard(attach.num_shards, attach.shard_index)


def local_ranks(attach: Attach) -> range:
    """The ranks that attach to this daemon; ranks on other machines have their own daemons."""
    if attach.local_ranks is None:
        return range(attach.world_size)
    first, count = attach.local_ranks
    return range(first, first + count)


def rounds_of(attach: Attach, rank: int) -> int:
    """How many batches from the job's position on a rank has taken already."""
    # Siblings that attach again may be a step or two behind; those that never left keep their cursors.
    return attach.rounds if rank == attach.rank else max(0, attach.rounds - _SIBLINGS_LATE)


def given_place(attach: Attach, samples: int) -> EpochPosition | None:
    """The place of a resumed job, in positions of its shard; raises `Refusal` if not all shards can resume there."""
    if attach.position is None or attach.epoch_start is None:
        return None
    try:
        return EpochPosition(*shard_of(attach).from_all(attach.epoch, attach.epoch_start, attach.position, samples))
    except ValueError as e:
        raise Refusal("spec", str(e), "num_shards") from e


def first_of(attach: Attach, orders: Orders, samples: int) -> int | None:
    """Where epoch 0 of a fresh job must begin, None for anywhere; raises `Refusal` if no epoch can begin there."""
    first = attach.first
    if attach.num_shards > 1 or len(local_ranks(attach)) < attach.world_size:
        if first:
            reason = "the machines of a run begin at position 0: only start='first' (or 0) can be asked for"
            raise Refusal("spec", f"start = {first}: {reason}", "start")
        return 0  # the only start on which daemons of several machines agree without talking to each other
    if first is not None and attach.position is None:
        try:
            check_start(orders(attach, samples), first, attach.epoch)
        except ValueError as e:
            raise Refusal("spec", str(e), "start") from e
    return first


def line_of(attach: Attach, samples: int, start: EpochPosition, rank: int, rounds: int) -> BatchLine:
    """The batches of a rank from `start` on; raises `Refusal` if there are none."""
    shard = shard_of(attach)
    shape = BatchShape(attach.batch_size, attach.drop_last, rank, attach.world_size, shard, attach.batching)
    try:
        return BatchLine(samples, shape, start.epoch_start, start.position, rounds)
    except ValueError as e:
        is_inside = start.epoch_start <= start.position <= start.epoch_start + shard.positions(samples)
        raise Refusal("spec", str(e), "batch_size" if is_inside else "position") from e


def rows_had(attach: Attach, samples: int) -> int:
    """How many rows from its position on a returning rank can skip, because no rank on this machine needs them."""
    given = given_place(attach, samples)
    if given is None or not attach.rounds:
        return 0
    lines = (line_of(attach, samples, given, rank, rounds_of(attach, rank)) for rank in local_ranks(attach))
    return min(line.peek().start for line in lines) - given.position


def ring_rows(fields: Sequence[Field], round_rows: int, prefetch: int, rows_in_flight: int) -> tuple[int, int]:
    """Wanted rows of a new ring, and the fewest that work.

    The job that makes the lane takes `round_rows` in a round of batches and wants `prefetch` rows ahead (0: no wish); a
    busy pool fills `rows_in_flight` at a time. If it is cheap, the wanted rows fill whole pages, so that clients can
    map the ring twice end to end.
    """
    needed = ROUNDS_NEEDED * round_rows
    wanted = max(_ROUNDS_WANTED * round_rows, needed + 2 * rows_in_flight, prefetch + round_rows)
    dense = [field.row_bytes for field in fields if field.shape]
    if _SMALL_RING_ROWS * sum(dense) <= _SMALL_RING_BYTES:
        wanted = max(wanted, _SMALL_RING_ROWS)
    step = math.lcm(*map(whole_page_rows, dense))
    rounded = -(-wanted // step) * step
    return (rounded if rounded <= 2 * wanted else wanted), needed
