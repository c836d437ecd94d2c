"""torch DataLoader with torchvision v2 on uint8 tensors and their boxes: RandomIoUCrop, flip, Resize.

``boxes`` in the configuration is a file in COCO's format, ``size`` the side of an image, and ``decoder`` as for
`torch_vision`.
"""

from __future__ import annotations

import importlib
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from bench.peers.contenders.torch_vision import decoded, torchvision


class Boxes(Dataset[tuple[torch.Tensor, dict[str, Any]]]):
    def __init__(self, config: dict[str, Any]) -> None:
        content = json.loads(Path(config["boxes"]).read_text())
        boxes = defaultdict(list)
        for each in content["annotations"]:
            boxes[each["image_id"]].append(each["bbox"])
        self._images = [(f"/{each['file_name']}", torch.tensor(boxes[each["id"]])) for each in content["images"]]
        v2 = torchvision()
        self._tensors = importlib.import_module("torchvision.tv_tensors")
        self._decoder = config["decoder"]
        self._transform = v2.Compose([
            v2.ConvertBoundingBoxFormat("XYXY"), v2.RandomIoUCrop(), v2.RandomHorizontalFlip(),
            v2.Resize((config["size"],) * 2), v2.SanitizeBoundingBoxes(),
        ])  # fmt: skip

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, Any]]:
        path, boxes = self._images[index]
        image = self._tensors.Image(decoded(path, self._decoder))
        made = self._tensors.BoundingBoxes(boxes, format="XYWH", canvas_size=tuple(image.shape[-2:]))
        image, target = self._transform(image, {"boxes": made, "labels": torch.zeros(len(boxes), dtype=torch.int64)})
        return image, target


def prepare(config: dict[str, Any]) -> None:
    torchvision()


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    return DataLoader(
        Boxes(config), batch_size=config["batch"], shuffle=True, num_workers=config["workers"], persistent_workers=True,
        generator=torch.Generator().manual_seed(config["seed"]), collate_fn=_collated,
    )  # fmt: skip


def _collated(samples: list[tuple[torch.Tensor, Any]]) -> tuple[torch.Tensor, list[Any]]:
    images, targets = zip(*samples, strict=True)
    return torch.stack(images), list(targets)
