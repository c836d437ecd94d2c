"""torch DataLoader with torchvision v2 on uint8 tensors: crop, flip, RandAugment, RandomErasing.

``decoder`` in the configuration is "pillow", as in torchvision's ImageFolder, or "simplejpeg", which is faster.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image

from bench.harness.contender import SIZE
from bench.peers.contenders.torch_loader import Listed, loader


def torchvision() -> Any:
    """torchvision's transforms, v2."""
    try:
        return importlib.import_module("torchvision.transforms.v2")
    except RuntimeError:
        # A CUDA build beside a CPU torch fails at operators that nobody here uses; a schema is all it asks for.
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return importlib.import_module("torchvision.transforms.v2")


def decoded(path: str, decoder: str) -> torch.Tensor:
    """Pixels, (3, height, width)."""
    if decoder == "simplejpeg":
        pixels = simplejpeg.decode_jpeg(Path(path).read_bytes())
    else:
        with Image.open(path) as file:
            pixels = np.array(file.convert("RGB"))
    return torch.from_numpy(pixels).permute(2, 0, 1)


class Photos(Listed):
    def __init__(self, path: str, decoder: str) -> None:
        super().__init__(path)
        v2 = torchvision()
        self._decoder = decoder
        self._transform = v2.Compose([
            v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip(), v2.RandAugment(), v2.RandomErasing(0.25),
        ])  # fmt: skip

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        return self._transform(decoded(path, self._decoder)), label


def prepare(config: dict[str, Any]) -> None:
    Image.init()
    torchvision()


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    return loader(Photos(config["list"], config["decoder"]), config)
