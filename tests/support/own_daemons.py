"""``own_daemons.py RUNTIME_DIR STORE RANK``: a rank with a private daemon; prints the indices of epochs as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch.distributed as dist

from prepclient import CenterCrop, PrepClient, SyntheticImages

SAMPLES, BATCH, RANKS = 4001, 30, 2
"""More samples than a ring of `prefetch` rows holds."""

SOURCE = SyntheticImages(SAMPLES, size=16)


def main(runtime_dir: str, store: str, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    spec: dict[str, Any] = {"batch_size": BATCH, "fields": ("index",), "runtime_dir": runtime_dir, "workers": 1}
    batches: dict[str, Any] = {**spec, "shuffle": True, "order": "batch-shuffle-repeat", "job": "batches"}
    with PrepClient(SOURCE, [CenterCrop(8)], shuffle=True, job="own", prefetch=120, **spec) as train:
        read = [[index for (indices,) in train for index in indices.tolist()] for _ in range(2)]
        sizes = len(train), len(train.sampler)
        with PrepClient(SOURCE, [CenterCrop(8)], job="second", **spec) as second:
            read.append([index for (indices,) in second for index in indices.tolist()])
        with PrepClient(SOURCE, [CenterCrop(8)], **batches) as first:
            some = iter(first)
            read.append([index for _ in range(9) for index in next(some)[0].tolist()])
            state = first.state_dict()
    with PrepClient(SOURCE, [CenterCrop(8)], **batches) as resumed:
        resumed.load_state_dict(state)
        read[-1] += [index for (indices,) in resumed for index in indices.tolist()]
    sys.stdout.write(json.dumps({"read": read, "sizes": sizes}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
