"""torch DataLoader, tuned: simplejpeg decodes, torch's own uint8 kernel resizes (antialiased)."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import simplejpeg
import torch
from torch.nn.functional import interpolate

from bench.harness.contender import SIZE
from bench.peers.contenders.crops import draw_crop
from bench.peers.contenders.torch_loader import Listed, loader


class Photos(Listed):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        image = torch.from_numpy(simplejpeg.decode_jpeg(Path(path).read_bytes()))
        top, left, height, width = draw_crop(image.shape[0], image.shape[1])
        crop = image[top : top + height, left : left + width].permute(2, 0, 1)[None]
        row = interpolate(crop, (SIZE, SIZE), mode="bilinear", antialias=True)[0].permute(1, 2, 0)
        if random.random() < 0.5:
            row = row.flip(1)
        return row.contiguous(), label


def open_loader(config: dict[str, Any]) -> Iterable[Any]:
    return loader(Photos(config["list"]), config)
