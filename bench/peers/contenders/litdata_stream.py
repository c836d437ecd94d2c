"""LitData: photos and labels in its chunks of 64 MB, read by its own DataLoader."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import litdata
import torch

from bench.peers.contenders.lists import listed
from bench.peers.contenders.rows import row_of


def build(config: dict[str, Any]) -> None:
    litdata.optimize(
        fn=_sample, inputs=listed(config["list"]), output_dir=config["out"], chunk_bytes="64MB",
        num_workers=config["workers"],
    )  # fmt: skip


def _sample(sample: tuple[str, int]) -> dict[str, Any]:
    path, label = sample
    return {"image": Path(path).read_bytes(), "label": label}


class _Photos(litdata.StreamingDataset):
    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(index)
        return torch.from_numpy(row_of(sample["image"])), sample["label"]


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    dataset = _Photos(config["data"], shuffle=True, seed=config["seed"], drop_last=True)
    loader: Iterable[Any] = litdata.StreamingDataLoader(
        dataset, batch_size=config["batch"], num_workers=config["workers"], persistent_workers=True
    )
    return loader
