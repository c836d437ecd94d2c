"""What each rank of `test_two_nodes` runs under torchrun: the first launch stops in mid-epoch, the second goes on."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from prepclient import CenterCrop, PrepClient, SyntheticImages

SAMPLES = 96
BATCH_SIZE = 8


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    checkpoint = folder / "checkpoint"
    resumes = checkpoint.exists()
    dist.barrier()
    train = PrepClient(
        SyntheticImages(SAMPLES, size=16), [CenterCrop(16)], batch_size=BATCH_SIZE, shuffle=True, seed=3,
        fields=("image", "index"), job="nodes",
    )  # fmt: skip
    with train:
        if resumes:
            train.load_state_dict(torch.load(checkpoint))
            indices = [index for _, batch in train for index in batch.tolist()]
        else:
            epoch = iter(train)
            indices = [index for _ in range(2) for index in next(epoch)[1].tolist()]
            if rank == 0:
                torch.save(train.state_dict(), checkpoint)
        everyone: list[list[int]] = [[] for _ in range(world_size)]
        dist.all_gather_object(everyone, indices)
    if rank == 0:
        read = " ".join(str(index) for part in everyone for index in part)
        (folder / f"read-{'second' if resumes else 'first'}").write_text(read)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
