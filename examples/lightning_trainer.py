"""Lightning: the Trainer takes a PrepClient in a DataLoader's place; checkpoints in mid-epoch hold its position.

    pip install lightning; python examples/lightning_trainer.py

Batches arrive on the device and hold this rank's part, so Lightning moves nothing and adds no sampler.
"""

from __future__ import annotations

import lightning
import torch
from torch import nn

from prepclient import PrepClient, RandomResizedCrop, SyntheticImages

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Classifier(lightning.LightningModule):
    """A LightningModule like any other."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 1000))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> torch.Tensor:
        """The loss of a batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.model(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    """Two epochs."""
    train = PrepClient(
        SyntheticImages(120, size=64), [RandomResizedCrop(32)], batch_size=16, shuffle=True, drop_last=True,
        device=DEVICE, dtype=torch.float32, job="lightning", workers=2,
    )  # fmt: skip
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="auto", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with train:
        trainer.fit(Classifier(), train)
        print(f"epoch {trainer.current_epoch}: {trainer.global_step} steps, {train.epoch} epochs read")


if __name__ == "__main__":
    main()
