"""What the DataLoader contenders share: the list and the loader's settings."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from bench.peers.contenders.lists import listed


class Listed(Dataset[tuple[torch.Tensor, int]]):
    """The samples of a list file; a subclass makes one of them."""

    def __init__(self, path: str) -> None:
        self.samples = listed(path)

    def __len__(self) -> int:
        return len(self.samples)


def loader(dataset: Listed, config: dict[str, Any]) -> DataLoader[tuple[torch.Tensor, int]]:
    return DataLoader(
        dataset, batch_size=config["batch"], shuffle=True, num_workers=config["workers"], persistent_workers=True,
        generator=torch.Generator().manual_seed(config["seed"]),
        pin_memory=config.get("device", "cpu") != "cpu",
    )  # fmt: skip
