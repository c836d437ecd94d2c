"""The Trainer of Hugging Face's transformers: `get_train_dataloader` returns a PrepClient's batches.

    pip install transformers accelerate; python examples/hf_trainer.py

The Trainer passes a batch to the model as keyword arguments, so `Named` gives the columns the names that these have.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from prepclient import PrepClient, RandomResizedCrop, SyntheticImages


class Model(nn.Module):
    """Takes keyword arguments and returns the loss first, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 32 * 32, 1000)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor]:
        """The loss."""
        return (nn.functional.cross_entropy(self.linear(pixel_values.flatten(1)), labels),)


class Named:
    """Batches as keyword arguments; the length tells the Trainer how many steps an epoch has."""

    def __init__(self, train: PrepClient) -> None:
        self.train = train

    def __len__(self) -> int:
        return len(self.train)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return ({"pixel_values": images, "labels": labels} for images, labels in self.train)


def main() -> None:
    """Two epochs."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, num_train_epochs=2, report_to=[], save_strategy="no", disable_tqdm=True)
        train = PrepClient(
            SyntheticImages(120, size=64), [RandomResizedCrop(32)], batch_size=16, shuffle=True, drop_last=True,
            device=arguments.device, dtype=torch.float32, job="trainer", workers=2)  # fmt: skip
        trainer = Trainer(Model(), arguments)
        trainer.get_train_dataloader = lambda: Named(train)
        with train:
            done = trainer.train()
            print(f"{done.global_step} steps, loss {done.training_loss:.2f}")


if __name__ == "__main__":
    main()
