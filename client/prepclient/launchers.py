"""Warns once where a launcher does not say enough, so that processes or machines do each other's work.

What is read does not change: nobody but the user knows whether the processes belong to one run.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping

from prepclient.sharding import Sharding
from prepclient.spec import Spec

log = logging.getLogger("prepclient")

_was_warned = threading.Event()


def warn_of_launcher(spec: Spec, environ: Mapping[str, str], *, is_inline: bool) -> None:
    """Warns if each of several processes reads all samples, or each of several machines makes the rows of all ranks.

    Called at the first batch: a client may be older than its process group. Any `Sharding` says that it is meant.
    """
    if spec.sharding != Sharding() or _was_warned.is_set():
        return
    shape = spec.shape
    if shape.world_size * shape.shard.count == 1:
        found = _of_jax() or _of_srun(environ)
    else:
        found = "" if is_inline or shape.rank else _of_machines(spec, environ)
    if found:
        _was_warned.set()
        log.warning("%s", found)


def _of_jax() -> str:
    """They get no ranks from it, because it does not say which of them share a machine, and so a daemon."""
    jax, distributed = sys.modules.get("jax"), sys.modules.get("jax.distributed")  # not imported here
    is_initialized = getattr(distributed, "is_initialized", None)
    if jax is None or is_initialized is None or not is_initialized():
        return ""
    try:
        count = jax.process_count()
    except Exception:  # noqa: BLE001 - its backend does not start, which is no matter of ours
        return ""
    if count == 1:
        return ""
    return (
        f"jax.distributed runs {count} processes, and each will read all samples. Pass sharding="
        "Sharding(num_shards=jax.process_count(), shard_index=jax.process_index()) if each has its own daemon, "
        "or Sharding(rank=jax.process_index(), world_size=jax.process_count()) if one daemon serves all"
    )


def _of_srun(environ: Mapping[str, str]) -> str:
    """Task 0 of a step of several says it for all. They may be independent, so they get no ranks from Slurm."""
    count = environ.get("SLURM_STEP_NUM_TASKS", "1")  # absent in a batch script, which has SLURM_NTASKS
    if count == "1" or environ.get("SLURM_PROCID") != "0" or {"RANK", "WORLD_SIZE"} <= environ.keys():
        return ""
    return (
        f"srun runs {count} tasks, and each will read all samples. If they train one model, set RANK, WORLD_SIZE and "
        "so on from Slurm's variables (docs/operations.md, Slurm), or pass sharding="
        f"Sharding(rank=int(os.environ['SLURM_PROCID']), world_size={count}) if one daemon serves all. If each needs "
        "all samples, pass sharding=Sharding(rank=0, world_size=1)"
    )


def _of_machines(spec: Spec, environ: Mapping[str, str]) -> str:
    """Rank 0 says it for all, unless the launcher is torchrun or `local_ranks` shows that machines differ.

    Other launchers, such as Ray, do not give the number of machines. WORLD_SIZE / LOCAL_WORLD_SIZE is none: the first
    of two machines with 4 and 8 processes would take itself for one of three.
    """
    local, world_size, nodes = spec.local_ranks, spec.shape.world_size, environ.get("SLURM_STEP_NUM_NODES", "1")
    if local is None:
        if world_size == 1 or nodes == "1" or "LOCAL_WORLD_SIZE" in environ:
            return ""
        return (
            f"srun runs tasks on {nodes} machines. If the {world_size} ranks of this job do, each machine waits two "
            "minutes for those of the others, and then makes the rows of all. Set LOCAL_RANK, LOCAL_WORLD_SIZE and so "
            "on from Slurm's variables (docs/operations.md, Slurm)"
        )
    if "GROUP_RANK" in environ or world_size % local[1]:
        return ""
    index = "int(os.environ['NODE_RANK'])" if "NODE_RANK" in environ else "the number of the machine"
    return (
        f"each machine makes the rows of all {world_size} ranks, although it runs {local[1]} of them. If all machines "
        f"run as many, pass sharding=Sharding(num_shards={world_size // local[1]}, shard_index={index}), and each "
        "makes only those of its own ranks; else pass Sharding(num_shards=1)"
    )
