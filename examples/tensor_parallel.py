"""Tensor parallelism: the ranks of one group must get the same batches, and other groups must get others.

    torchrun --nproc-per-node 4 examples/tensor_parallel.py

Ranks 0 and 1 are one group here, ranks 2 and 3 the other. Each rank says which data-parallel part it reads. The ranks
of a group read the same part, as separate jobs of one stream, so each row is made once. `shuffle="full"` gives every
job the same order from the same seed; with `shuffle=True` a job may begin its epoch elsewhere in the stream. Run
`prepserver start -d` before.
"""

from __future__ import annotations

import hashlib
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from prepclient import PrepClient, RandomResizedCrop, Sharding, SyntheticImages


def main() -> None:
    """One epoch; then all ranks compare what they got."""
    on_gpu = torch.cuda.is_available()
    mesh = init_device_mesh("cuda" if on_gpu else "cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    data, tensor = mesh["data"].get_local_rank(), mesh["tensor"].get_local_rank()
    train = PrepClient(
        SyntheticImages(96, size=64), [RandomResizedCrop(32)], batch_size=16, shuffle="full",
        sharding=Sharding(rank=data, world_size=2), job=f"tensor-{tensor}",
        device=torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else None,
    )  # fmt: skip
    with train:
        batches = [hashlib.sha256(images.cpu().numpy().tobytes()).hexdigest() for images, _ in train]
    everyone: list[list[str]] = [[]] * dist.get_world_size()
    dist.all_gather_object(everyone, batches)
    assert everyone[0] == everyone[1]
    assert everyone[2] == everyone[3]
    assert not set(everyone[0]) & set(everyone[2])
    print(f"rank {dist.get_rank()}: part {data}, {len(batches)} batches, as the other rank of its group")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
