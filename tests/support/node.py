"""What each rank of `test_two_nodes` runs under torchrun: the first launch stops in mid-epoch, the second goes on.

``node.py FOLDER FRAMEWORK``: the loop is one's own, Accelerate's or Lightning's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from prepclient import CenterCrop, PrepClient, SyntheticImages

SAMPLES = 96
BATCH_SIZE = 8
STEPS = 2
"""Of the first launch."""


def loader() -> PrepClient:
    return PrepClient(
        SyntheticImages(SAMPLES, size=16), [CenterCrop(16)], batch_size=BATCH_SIZE, shuffle=True, seed=3,
        fields=("image", "index"), job="nodes",
    )  # fmt: skip


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 1))


def plain(train: PrepClient, steps: int | None) -> list[int]:
    """A loop of one's own; `None` goes to the end of the epoch."""
    batches = (index for _, index in train)
    return [number for _, index in zip(range(steps or SAMPLES), batches, strict=False) for number in index.tolist()]


def accelerated(train: PrepClient, steps: int | None) -> list[int]:
    """Accelerate's loop."""
    from accelerate import Accelerator

    accelerator, read = Accelerator(cpu=True), list[int]()
    module = model()
    module, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.1))
    for _, (images, index) in zip(range(steps or SAMPLES), train, strict=False):
        accelerator.backward(module(images.float() / 255).mean())
        optimizer.step()
        optimizer.zero_grad()
        read += index.tolist()
    return read


def lightning(train: PrepClient, steps: int | None) -> list[int]:
    """Lightning's Trainer on both nodes."""
    import lightning

    read: list[int] = []

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model()

        def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _number: int) -> torch.Tensor:
            images, index = batch
            read.extend(index.tolist())
            loss: torch.Tensor = self.model(images.float() / 255).mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    nodes = 2
    lightning.Trainer(
        max_epochs=1, max_steps=steps or -1, accelerator="cpu", strategy="ddp", num_nodes=nodes,
        devices=dist.get_world_size() // nodes, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(), train)  # fmt: skip
    return read


LOOPS = {"torch": plain, "accelerate": accelerated, "lightning": lightning}


def main(folder: Path, framework: str) -> None:
    dist.init_process_group("gloo")
    checkpoint = folder / "checkpoint"
    resumes = checkpoint.exists()
    dist.barrier()
    with loader() as train:
        if resumes:
            train.load_state_dict(torch.load(checkpoint, weights_only=True))
        read = LOOPS[framework](train, None if resumes else STEPS)
        if not resumes and dist.get_rank() == 0:
            torch.save(train.state_dict(), checkpoint)
        everyone: list[list[int]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(everyone, read)
    if dist.get_rank() == 0:
        text = " ".join(str(index) for part in everyone for index in part)
        (folder / f"read-{'second' if resumes else 'first'}").write_text(text)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
