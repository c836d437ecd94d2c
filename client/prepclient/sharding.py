"""Which part of the samples this process reads, as given by the user, torch.distributed or the launcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from prepclient.errors import InvalidSpec
from prepserver.pipeline.checks import integer
from prepserver.pipeline.shard import MAX_SHARDS, WHOLE, Shard


@dataclass(frozen=True, slots=True)
class Sharding:
    """The part of the samples that this process reads.

    By default rank and world size come from torch.distributed if it is initialized, else from ``$RANK`` and
    ``$WORLD_SIZE``, which torchrun and Ray Train set, and srun does not; without either, this process reads all
    samples. A client that was made alone looks again when an epoch begins. Ranks with private daemons read a shard
    each. Give rank and world size if not every rank reads another part, as in tensor parallelism, where all ranks of a
    group read the same one.

    Args:
        rank: Rank of this process among the data-parallel processes, from 0. Give it with `world_size`.
        world_size: Number of data-parallel processes; with shards, of those that read the same shard.
        num_shards: Number of shards of each pass, one for each machine of the run: a machine then makes only the rows
            of its own processes. The epoch begins at the same place on all machines. None means one shard for each
            machine if torchrun runs the same number of processes on each and `rank` is not given; else 1.
        shard_index: The shard that this machine reads, from 0. Give it with `num_shards`.

    Raises:
        InvalidSpec: A number is out of range, or is given without its partner.
    """

    rank: int | None = None
    world_size: int | None = None
    num_shards: int | None = None
    shard_index: int | None = None

    def __post_init__(self) -> None:
        if self.num_shards == 1 and self.shard_index is None:
            object.__setattr__(self, "shard_index", 0)
        for part, count, most in (("rank", "world_size", 2**16), ("shard_index", "num_shards", MAX_SHARDS)):
            place, size = getattr(self, part), getattr(self, count)
            if (place is None) != (size is None):
                raise InvalidSpec(f"{part} and {count} must be given together", part if place is None else count)
            if size is not None:
                size = integer(count, size, 1, most)
                object.__setattr__(self, count, size)
                object.__setattr__(self, part, integer(part, place, 0, size - 1))

    @property
    def shard(self) -> Shard:
        """The shard; the whole pass if none is given."""
        return Shard(self.num_shards or 1, self.shard_index or 0)


class Ranks(NamedTuple):
    """This process among the data-parallel processes of its run."""

    rank: int
    world_size: int  # number of processes that read this shard
    local: tuple[int, int] | None = None  # (first, count) of the ranks on this machine; None for all
    shard: Shard = WHOLE  # the shard that these processes read


def find_ranks(sharding: Sharding, environ: Mapping[str, str]) -> Ranks:
    """Rank and world size: as given, else from torch.distributed, else from the launcher, else a single process.

    With shards they count the processes of one shard. If `sharding` is empty, each machine gets a shard, provided that
    the launcher runs the same number of processes on each of several machines.

    Raises:
        InvalidSpec: The launcher's numbers contradict each other, or do not say which ranks read a shard.
    """
    if sharding.rank is not None and sharding.world_size is not None:
        return Ranks(sharding.rank, sharding.world_size, None, sharding.shard)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    elif "RANK" in environ and "WORLD_SIZE" in environ:
        rank, world_size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    else:
        rank, world_size = 0, 1
    Sharding(rank, world_size)  # checks their ranges
    found = Ranks(rank, world_size, _local_ranks(environ, rank, world_size))
    shard = _machine(environ, found) if sharding.num_shards is None else sharding.shard
    if shard.count == 1:
        return found
    if found.local is not None:
        return Ranks(rank - found.local[0], found.local[1], None, shard)
    if world_size > 1 and "LOCAL_WORLD_SIZE" not in environ:
        raise InvalidSpec(
            f"num_shards = {shard.count}: rank and world_size count the processes of one shard, but the launcher does "
            f"not say which of the {world_size} processes read it. Pass rank and world_size, too",
            "rank",
        )
    return found._replace(shard=shard)


def apart(ranks: Ranks) -> Ranks:
    """Each process as a shard of its own, for processes that do not share a daemon."""
    count, index = ranks.shard.count * ranks.world_size, ranks.shard.index * ranks.world_size + ranks.rank
    return Ranks(0, 1, None, Sharding(num_shards=count, shard_index=index).shard)


def _machine(environ: Mapping[str, str], found: Ranks) -> Shard:
    """This machine's shard, if the launcher (torchrun) says that each machine runs the same number of processes."""
    if found.local is None or "GROUP_RANK" not in environ or "GROUP_WORLD_SIZE" not in environ:
        return WHOLE
    first, count = found.local
    machine, machines = _number(environ, "GROUP_RANK"), _number(environ, "GROUP_WORLD_SIZE")
    if machines * count != found.world_size or machine * count != first:
        return WHOLE
    return Sharding(num_shards=machines, shard_index=machine).shard


def _local_ranks(environ: Mapping[str, str], rank: int, world_size: int) -> tuple[int, int] | None:
    """(first, count) of the ranks on this machine; None if it runs all ranks, or the launcher does not say."""
    if "LOCAL_RANK" not in environ or "LOCAL_WORLD_SIZE" not in environ:
        return None
    count = _number(environ, "LOCAL_WORLD_SIZE")
    if count >= world_size:
        return None
    first = rank - _number(environ, "LOCAL_RANK")
    if not 0 <= first <= rank < first + count <= world_size:
        raise InvalidSpec(
            f"$LOCAL_RANK = {environ['LOCAL_RANK']} and $LOCAL_WORLD_SIZE = {count} do not fit "
            f"rank = {rank} of world_size = {world_size}",
            "LOCAL_RANK",
        )
    return first, count


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise InvalidSpec(f"${name} = {environ[name]!r} is not a number", name) from None
