"""torch DataLoader as most people have it: Pillow decodes, crops and resizes (antialiased), then the flip.

The arithmetic is torchvision's for PIL images. ``resize(box=)`` crops and resizes in one step, which saves a copy and
is a little faster than torchvision itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from PIL import Image

from bench.harness.contender import SIZE
from bench.peers.contenders.crops import draw_crop
from bench.peers.contenders.torch_loader import Listed, loader


class Photos(Listed):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as file:
            image = file.convert("RGB")
        top, left, height, width = draw_crop(image.height, image.width)
        box = (left, top, left + width, top + height)
        image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)), label


def prepare(config: dict[str, Any]) -> None:
    Image.init()


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    return loader(Photos(config["list"]), config)
