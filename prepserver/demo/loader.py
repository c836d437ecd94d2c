"""The data side of a job without prepserver: torch's DataLoader with Pillow, as in most training scripts.

Both phases read the same encoded bytes, by the same listing. Crops are drawn as torchvision's RandomResizedCrop draws
them; ``resize(box=)`` crops and resizes in one step.
"""

from __future__ import annotations

import io
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from prepserver.pipeline.sources import source_from_wire
from prepserver.source import open_source
from prepserver.source.errors import printable

_RATIO = 3 / 4, 4 / 3


class Photos(Dataset[tuple[torch.Tensor, int]]):
    """Decoded, randomly cropped, flipped samples of a source and its listing: (uint8 [size, size, 3], label)."""

    def __init__(self, source: dict[str, Any], index_path: Path, size: int) -> None:
        self._source = open_source(source_from_wire(source), index_path)
        self._size = size

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample = self._source.read(index)
        assert isinstance(sample["image"], bytes)  # so are files and synthetic photos
        try:
            image = Image.open(io.BytesIO(sample["image"])).convert("RGB")
        except Exception as e:
            raise ValueError(f"{printable(self._source.name(index))} cannot be decoded: {e}") from e
        box = draw_box(image.height, image.width)
        image = image.resize((self._size, self._size), Image.Resampling.BILINEAR, box=box)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(image)), sample["label"]


def draw_box(height: int, width: int) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of a random crop, as torchvision's ``RandomResizedCrop.get_params``."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        aspect = math.exp(random.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    w = min(width, round(height * _RATIO[1]))
    h = min(height, round(width / _RATIO[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def make_loader(photos: Photos, batch_size: int, workers: int, seed: int) -> DataLoader[tuple[torch.Tensor, int]]:
    """A DataLoader whose `workers` processes serve all epochs."""
    return DataLoader(
        photos, batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=True,
        pin_memory=torch.cuda.is_available(), generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
