"""``own_daemons.py RUNTIME_DIR STORE RANK``: a rank with a private daemon; prints the indices of two epochs as JSON."""

from __future__ import annotations

import json
import sys

import torch.distributed as dist

from prepclient import CenterCrop, PrepClient, SyntheticImages

SAMPLES, BATCH, RANKS = 4001, 30, 2
"""More samples than a ring of `prefetch` rows holds."""


def main(runtime_dir: str, store: str, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    with PrepClient(
        SyntheticImages(SAMPLES), [CenterCrop(8)], batch_size=BATCH, shuffle=True, fields=("index",), job="own",
        runtime_dir=runtime_dir, workers=1, prefetch=120,
    ) as train:  # fmt: skip
        read = [[index for (indices,) in train for index in indices.tolist()] for _ in range(2)]
        sizes = len(train), len(train.sampler)
    sys.stdout.write(json.dumps({"read": read, "sizes": sizes}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
