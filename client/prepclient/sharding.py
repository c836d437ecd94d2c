"""The part of the samples that this process reads, as given by the user, torch.distributed or the launcher."""

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
    """The part of the samples that a process reads.

    Args:
        rank: Rank of this process, from 0. None takes torch.distributed's, else ``$RANK``, else 0.
        world_size: Number of data-parallel processes; with shards, of those that read this shard. Give it with `rank`.
        num_shards: Shards of each pass, one for each machine of the run, so that a machine makes only the rows of its
            own processes; an epoch then begins at the same place on all machines. None is one shard per machine if
            torchrun runs equally many processes on each and `rank` is not given, else 1.
        shard_index: The shard that this machine reads, from 0. Give it with `num_shards`.

    Raises:
        InvalidSpec: A number is out of range, or its partner is missing.
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
                raise InvalidSpec(f"{part} and {count} come together", part if place is None else count)
            if size is not None:
                size = integer(count, size, 1, most)
                object.__setattr__(self, count, size)
                object.__setattr__(self, part, integer(part, place, 0, size - 1))

    @property
    def shard(self) -> Shard:
        """The shard; all of each pass if none is named."""
        return Shard(self.num_shards or 1, self.shard_index or 0)


class Ranks(NamedTuple):
    """This process among the data-parallel processes of its run."""

    rank: int
    world_size: int  # processes that read this shard
    local: tuple[int, int] | None = None  # (first, count) of the ranks on this machine, None for all
    shard: Shard = WHOLE  # of these processes


def find_ranks(sharding: Sharding, environ: Mapping[str, str]) -> Ranks:
    """Rank and world size: as given, else torch.distributed's, else the launcher's (torchrun), else one process.

    With shards they count the processes of one shard. Without any given number, each machine is a shard if the launcher
    shows that the run has equally many processes on each of several machines.

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
    Sharding(rank, world_size)  # its ranges
    found = Ranks(rank, world_size, _local_ranks(environ, rank, world_size))
    shard = _machine(environ, found) if sharding.num_shards is None else sharding.shard
    if shard.count == 1:
        return found
    if found.local is not None:
        return Ranks(rank - found.local[0], found.local[1], None, shard)
    if world_size > 1 and "LOCAL_WORLD_SIZE" not in environ:
        raise InvalidSpec(
            f"num_shards = {shard.count}: rank and world_size count the processes of one shard, and the launcher does "
            f"not say which of the {world_size} these are. Pass both",
            "rank",
        )
    return found._replace(shard=shard)


def _machine(environ: Mapping[str, str], found: Ranks) -> Shard:
    """This machine's shard, if the launcher says that all machines run equally many processes (torchrun does)."""
    if found.local is None or "GROUP_RANK" not in environ or "GROUP_WORLD_SIZE" not in environ:
        return WHOLE
    first, count = found.local
    machine, machines = _number(environ, "GROUP_RANK"), _number(environ, "GROUP_WORLD_SIZE")
    if machines * count != found.world_size or machine * count != first:
        return WHOLE
    return Sharding(num_shards=machines, shard_index=machine).shard


def _local_ranks(environ: Mapping[str, str], rank: int, world_size: int) -> tuple[int, int] | None:
    """(first, count) of the ranks on this machine; None if the launcher knows no others."""
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


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise InvalidSpec(f"${name} = {environ[name]!r} is not a number", name) from None
