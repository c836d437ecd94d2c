"""Mosaic streaming: photos and labels in MDS shards, read by torch's DataLoader."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

try:  # streaming imports it
    importlib.import_module("torchvision")
except RuntimeError:
    # A CUDA build beside a CPU torch fails at operators that nobody here uses; a schema is all it asks for.
    _LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import streaming
from torch.utils.data import DataLoader

from bench.peers.contenders.lists import listed
from bench.peers.contenders.rows import row_of


def build(config: dict[str, Any]) -> None:
    with streaming.MDSWriter(out=config["out"], columns={"image": "bytes", "label": "int"}) as writer:
        for path, label in listed(config["list"]):
            writer.write({"image": Path(path).read_bytes(), "label": label})


class _Photos(streaming.StreamingDataset):
    def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
        sample = super().__getitem__(index)
        return torch.from_numpy(row_of(sample["image"])), sample["label"]


def prepare(config: dict[str, Any]) -> None:
    # What an earlier run left in /dev/shm when it was killed.
    streaming.base.util.clean_stale_shared_memory()


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    dataset = _Photos(local=config["data"], shuffle=True, shuffle_seed=config["seed"], batch_size=config["batch"])
    return DataLoader(dataset, batch_size=config["batch"], num_workers=config["workers"], persistent_workers=True)
