"""DistributedDataParallel: each rank reads its part of every epoch, and no sampler is needed.

    torchrun --nproc-per-node 2 examples/ddp.py

Rank and world size come from torch.distributed. All ranks give the same job name, and one daemon per machine serves
them: run `prepserver start -d` before torchrun.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prepclient import PrepClient, RandomResizedCrop, SyntheticImages


def main() -> None:
    """Two epochs."""
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 1000)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train = PrepClient(
        SyntheticImages(240, size=64), [RandomResizedCrop(32)], batch_size=16, shuffle=True, drop_last=True,
        device=device, dtype=torch.float32, job="ddp",
    )  # fmt: skip
    with train:
        for epoch in range(2):
            for images, labels in train:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"rank {dist.get_rank()}: epoch {epoch}, {len(train)} batches, loss {loss.item():.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
