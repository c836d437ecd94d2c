"""``late_ranks.py RUNTIME_DIR STORE RANK``: a rank whose process group begins after its clients were made.

Prints as JSON the indices of an epoch of each client: one that was not used before, one whose length was asked for, two
that gave a batch, of which one was closed then, one that did so in rank 0 only, and one that reads all samples because
`Sharding` says so.
"""

from __future__ import annotations

import json
import sys

import torch.distributed as dist

from prepclient import CenterCrop, PrepClient, Sharding, SyntheticImages

SAMPLES, BATCH = 105, 10


def main(runtime_dir: str, store: str, rank: int) -> None:
    def client(name: str, sharding: Sharding | None = None) -> PrepClient:
        return PrepClient(
            SyntheticImages(SAMPLES), [CenterCrop(8)], batch_size=BATCH, shuffle=True, fields=("index",), job=name,
            runtime_dir=runtime_dir, sharding=sharding,
        )  # fmt: skip

    names = ("unused", "length", "batch", "closed", "unequal")
    clients = [*map(client, names), client(f"all{rank}", Sharding(0, 1))]
    assert len(clients[1]) == 11
    next(iter(clients[2]))
    next(iter(clients[3]))
    clients[3].close()
    if rank == 0:
        next(iter(clients[4]))
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    assert len(clients[1]) == 6
    read = [[index for (indices,) in each for index in indices.tolist()] for each in clients]
    sizes = [len(each) for each in clients]
    dist.barrier()
    sys.stdout.write(json.dumps({"read": read, "sizes": sizes, "epochs": [each.epoch for each in clients]}))
    dist.destroy_process_group()
    assert len(clients[0]) == 6  # it stays a rank
    for each in clients:
        each.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
